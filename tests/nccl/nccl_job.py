"""Runs a script as the ranks of a job under the doubles of CUDA and NCCL (doubles/), in bounded
time."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernel_emulation import CCACHE, Kernels
from processes import Ended, run_beside

from omnihvd import engine
from omnihvd.intercept import kernel_cache

HERE = Path(__file__).parent
CUDA_SOURCES = ("cuda", "kernels", "memory", "stream")
NCCL_SOURCES = ("nccl", "communicator", "star", "reduce")
BLOCK_SIZES = (256, 32)
ARCH = "sm_90"  # what the double of CUDA says it is


@dataclass(frozen=True)
class Doubles:
    folder: Path

    @property
    def cuda(self) -> Path:
        return self.folder / "libcuda.so.1"

    @property
    def nccl(self) -> Path:
        return self.folder / "libnccl.so.2"


def build(folder: Path, kernels: Path) -> Doubles:
    """Compiles the doubles, and, in `kernels`, the emulated ones as the files that the shim
    loads."""
    doubles = Doubles(folder)
    _library(doubles.cuda, CUDA_SOURCES)
    _library(doubles.nccl, NCCL_SOURCES, f"-L{folder}", "-l:libcuda.so.1", "-Wl,-rpath,$ORIGIN")
    os.environ["OMNIHVD_KERNEL_CACHE"] = str(folder / "cache")
    modules = [(dtype, size, kernels) for size in BLOCK_SIZES for dtype in kernel_cache.DTYPES]
    try:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(_emulate, *zip(*modules)))
    finally:
        del os.environ["OMNIHVD_KERNEL_CACHE"]
    return doubles


def _emulate(dtype: str, block_size: int, folder: Path) -> None:
    cubin = kernel_cache.path_of(dtype, block_size, ARCH)
    cubin.parent.mkdir(parents=True, exist_ok=True)
    cubin.write_text(str(Kernels(dtype, block_size, folder).library))


def _library(path: Path, sources: tuple[str, ...], *options: str) -> None:
    more = shlex.split(os.environ.get("TEST_CXXFLAGS", ""))  # of .ci/sanitize
    command = [*CCACHE, "g++", "-std=c++17", "-O1", "-g", "-fPIC", "-Wall", "-Wextra", "-Werror"]
    compiled = [path.with_name(f"{name}.o") for name in sources]
    for name, target in zip(sources, compiled):  # one at a time, for ccache
        source = str(HERE / "doubles" / f"{name}.cc")
        subprocess.run([*command, *more, "-c", source, "-o", str(target)], check=True, timeout=100)
    link = ["g++", "-shared", *map(str, compiled), "-o", str(path), f"-Wl,-soname,{path.name}"]
    subprocess.run([*link, "-pthread", "-ldl", *options, *more], check=True, timeout=100)


def run(
    doubles: Doubles,
    script: str,
    ranks: int,
    *words: object,
    ranks_per_host: int = 0,
    preload: bool = True,
    env: Mapping[str, str] | None = None,
    timeout: float = 60,
    check: bool = True,
) -> list[Ended]:
    """Runs on_ranks/<script> and returns what became of each rank. Hosts have as many ranks as
    said; 0: each is on one of its own. Raises AssertionError with all output when a rank fails
    (unless check is false), and after timeout seconds, with the stacks of all ranks."""
    shim = [str(engine.NCCL_SHIM)] if preload else []
    sanitizer = os.environ.get("LD_PRELOAD", "").split()
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "LD_PRELOAD": ":".join([*sanitizer, *shim, str(doubles.nccl), str(doubles.cuda)]),
            "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, sys.path)]),
            "PYTHONFAULTHANDLER": "1",
            "OMNIHVD_KERNEL_CACHE": str(doubles.folder / "cache"),
            "OMNIHVD_GPU": "union",
            "OMNIHVD_GPU_MIN_BYTES": "0",
            "OMNIHVD_GPU_CHUNK_BYTES": "1048576",
            "NCCL_DOUBLE_FOLDER": folder,
            "SIZE": str(ranks),
            **(env or {}),
        }
        environments = []
        for rank in range(ranks):
            host = f"host{rank // max(ranks_per_host, 1)}"
            environments.append({**environment, "RANK": str(rank), "OMNIHVD_HOST_ID": host})
        command = [sys.executable, HERE / "on_ranks" / script, *words]
        return run_beside([command] * ranks, environments, timeout=timeout, check=check)


def run_well(*args: Any, **options: Any) -> None:
    """run(), in which each rank says that all is well."""
    for rank in run(*args, **options):
        assert "all well" in rank.output, rank.output
