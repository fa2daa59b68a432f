"""The kernels compiled for GPUs, as files that the NCCL shim loads: `omnihvd kernels`.

    <OMNIHVD_KERNEL_CACHE>/<digest of the sources>/<architecture>/<kind><bits>_<block size>.cubin

The shim cannot compile: CUDA's compiler comes with CuPy's NVRTC, in Python. So the hook makes the
files first; concurrent ranks wait for the first one to finish.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import hashlib
import importlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from omnihvd import engine
from omnihvd.log import logger, warn_once_per_job

PACKAGE = Path(__file__).parents[1]
# Installed, the sources lie in the package; in a source tree, beside it.
SOURCES = next(
    (f for f in (PACKAGE / "kernels", PACKAGE.parent / "kernels") if (f / "kernels.cu").exists()),
    PACKAGE / "kernels",
)
# A dtype for each width and zero test.
DTYPES = ("float16", "float32", "float64", "int8", "int32", "int64")
COMPILING_S = 300.0


def folder(arch: str) -> Path:
    """The folder of an architecture ("sm_90"), as in csrc/nccl/kernels.cc."""
    root = engine.session.settings_from_environment().kernel_cache or (
        Path(os.environ.get("XDG_CACHE_HOME") or _home() / ".cache") / "omnihvd/kernels"
    )
    files = sorted(path for path in SOURCES.iterdir() if path.suffix in (".cu", ".cuh"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:16]
    return Path(root) / digest / arch


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError as why:
        raise FileNotFoundError(
            "there is no home folder to keep kernels in: set OMNIHVD_KERNEL_CACHE"
        ) from why


def path_of(dtype: str, block_size: int, arch: str, source: str = "kernels") -> Path:
    """A kernel's file. source: the name of the compiled file, kernels.cu or another."""
    kind = dtype if source == "kernels" else f"{source}_{dtype}"
    return folder(arch) / f"{kind}_{block_size}.cubin"


def complete(
    arch: str, block_size: int, dtypes: Sequence[str] = DTYPES, source: str = "kernels"
) -> bool:
    return all(path_of(dtype, block_size, arch, source).exists() for dtype in dtypes)


def compile_missing(
    arch: str, block_size: int, dtypes: Sequence[str] = DTYPES, source: str = "kernels"
) -> list[Path]:
    """Compiles missing kernels, one process at a time, and returns the new files.

    Raises ImportError without CuPy, RuntimeError when the compiler fails, OSError when the folder
    cannot be written."""
    if complete(arch, block_size, dtypes, source):
        return []
    where = folder(arch)
    where.mkdir(parents=True, exist_ok=True)
    kernels = importlib.import_module("omnihvd.kernels")  # slow, and needs CuPy
    made = []
    with (where / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for dtype in dtypes:
            path = path_of(dtype, block_size, arch, source)
            if path.exists():
                continue
            temporary = path.with_suffix(f".{os.getpid()}")
            temporary.write_bytes(kernels.cubin(dtype, block_size, arch, f"{source}.cu"))
            temporary.replace(path)  # atomic: the shim must never see half a file
            made.append(path)
    return made


def architectures() -> list[str]:
    """The architectures of this machine's GPUs, from the driver; none without a driver. It leaves
    the driver initialized in this process: do not call it in a process that forks later."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return []
    number = ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(number)):
        return []
    found = set()
    for index in range(number.value):
        device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        driver.cuDeviceGet(ctypes.byref(device), index)
        driver.cuDeviceGetAttribute(ctypes.byref(major), 75, device)  # as in cuda.h
        driver.cuDeviceGetAttribute(ctypes.byref(minor), 76, device)
        found.add(f"sm_{major.value}{minor.value}")
    return sorted(found)


def make_for_this_machine() -> None:
    """Makes the files for this machine's GPUs. It does so in a child, so that this process may
    still fork."""
    command = [sys.executable, "-m", "omnihvd", "kernels"]
    environment = {**os.environ, "OMNIHVD_ENABLE": "0"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=COMPILING_S, env=environment
        )
    except subprocess.TimeoutExpired:
        warn_once_per_job(
            f"compiling the GPU kernels took more than {COMPILING_S:.0f} s, so sums stay NCCL's: "
            "run `omnihvd kernels` before the job, once on each host"
        )
        return
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        warn_once_per_job(
            f"there are no kernels for this machine's GPUs, so sums stay NCCL's: {last}"
        )
    elif done.stdout:
        logger.info(done.stdout.strip())


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="omnihvd kernels",
        description="Compiles the GPU kernels that the NCCL shim loads, where they are missing.",
    )
    parser.add_argument(
        "--arch",
        action="append",
        help="for this architecture (sm_90; may be repeated); else for this machine's GPUs",
    )
    chosen = parser.parse_args(arguments).arch
    try:
        block_size = engine.session.settings_from_environment().block_size
    except engine.EngineError as why:
        parser.exit(1, f"omnihvd kernels: {why}\n")
    wanted = chosen or architectures()
    if not wanted:
        print("omnihvd kernels: no GPU found; name an architecture, as --arch sm_90")
        return 1
    try:
        for arch in wanted:
            made = compile_missing(arch, block_size)
            print(f"{folder(arch)}: {len(made)} compiled, {len(DTYPES) - len(made)} there already")
    except OSError as why:
        parser.exit(1, f"omnihvd kernels: {why}; set OMNIHVD_KERNEL_CACHE to another folder\n")
    except (ImportError, RuntimeError, ValueError) as why:
        parser.exit(1, f"omnihvd kernels: {why}\n")
    return 0
