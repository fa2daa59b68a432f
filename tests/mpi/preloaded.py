"""Runs MPI programs with the shim preloaded."""

from __future__ import annotations

import shutil
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from launch import STREAM, Job, launch

from omnihvd.intercept import mpi_abi

MPICC = shutil.which("mpicc", path=sysconfig.get_path("scripts")) or shutil.which("mpicc")
NEEDS = [
    pytest.mark.skipif(MPICC is None, reason="needs mpicc"),
    pytest.mark.skipif(not mpi_abi.shims(), reason="built without MPI"),
]


def run(
    command: Sequence[str | Path],
    ranks: int,
    env: Mapping[str, str] | None = None,
    env_of_rank: Mapping[int, Mapping[str, str]] | None = None,
    without: Sequence[int] = (),
    **options: Any,
) -> Job:
    """launch() with the shim preloaded on all ranks but `without`, and nothing too small for it."""
    if str(command[0]).endswith(".py"):
        command = [sys.executable, *command]
    words: list[str | Path] = []
    for rank in range(ranks):
        setting = {"OMNIHVD_MIN_BYTES": "1", "OMNIHVD_LOG": "info", **STREAM}
        setting.update(env or {})
        if rank not in without:
            setting["LD_PRELOAD"] = str(mpi_abi.shim())
        setting.update((env_of_rank or {}).get(rank, {}))
        words += [":", "-np", "1"] if rank else []
        words += ["env", *(f"{name}={value}" for name, value in setting.items()), *command]
    return launch(words, 1, **options)
