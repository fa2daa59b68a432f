"""Runs torch.distributed scripts on ranks that share one GPU, in bounded time."""

from __future__ import annotations

import functools
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from launch import ENVIRONMENT, STREAM
from processes import Ended, run_beside

from benchmarks.bench import one_gpu
from omnihvd import engine

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]
WRAPPER = Path(one_gpu.__file__)
PLAIN = {"OMNIHVD_ENABLE": "0"}


@functools.cache
def why_not() -> str:
    """Why there is nothing to test here; empty: there is."""
    try:
        import torch
    except ImportError as error:
        return f"no PyTorch: {error}"
    if not torch.cuda.is_available():
        return "no GPU that PyTorch can use"
    if not (torch.distributed.is_available() and torch.distributed.is_nccl_available()):
        return "this PyTorch has no NCCL"
    return "" if engine.NCCL_SHIM.exists() else "omnihvd was built without its NCCL shim"


def run(
    script: str | Path,
    ranks: int,
    *words: object,
    before: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    timeout: float = 120,
    check: bool = True,
) -> list[Ended]:
    """Runs on_ranks_gpu/<script>, or a script given by its path, and returns what became of each
    rank; `before` comes before the command. Raises AssertionError with all output when a rank fails
    (unless check is false), and after timeout seconds."""
    with tempfile.TemporaryDirectory() as folder:
        environments = [
            {
                **os.environ,
                **ENVIRONMENT,
                **STREAM,
                **own,
                "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, sys.path)]),
                "FOLDER": folder,
                **(env or {}),
            }
            for own in one_gpu.environments(ranks)
        ]
        command = [*before, sys.executable, HERE / "on_ranks_gpu" / script, *words]
        return run_beside([command] * ranks, environments, timeout=timeout, check=check)
