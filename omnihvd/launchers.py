"""Reads the variables that launchers set in each process's environment. (The engine itself reads
how many ranks a host has: csrc/engine/auto_streams.cc.)"""

from __future__ import annotations

import os
from typing import NamedTuple


class Launcher(NamedTuple):
    """Names of variables."""

    rank: str
    local_rank: str = ""  # among those of its host
    is_mpi: bool = False  # its processes may call MPI


ALL = (
    Launcher("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", is_mpi=True),  # Open MPI
    Launcher("HOROVOD_RANK", "HOROVOD_LOCAL_RANK"),
    Launcher("PMI_RANK", "MPI_LOCALRANKID", is_mpi=True),  # MPICH, Intel MPI
    Launcher("PMIX_RANK", is_mpi=True),
    Launcher("RANK", "LOCAL_RANK"),  # torchrun
    Launcher("SLURM_PROCID", "SLURM_LOCALID"),
)


_learnt: int | None = None


def learn_rank(rank: int) -> None:
    """Stores the rank from a library that has begun in this process. The launcher may not have set
    it, or only for a parent of this process."""
    global _learnt
    _learnt = rank


def process_rank() -> int | None:
    """This process's rank in its job; None outside a job."""
    return _learnt if _learnt is not None else _first([launcher.rank for launcher in ALL])


def local_rank() -> int:
    """This process's number among those of its host; 0 where unknown."""
    return _first([launcher.local_rank for launcher in ALL]) or 0


def may_call_mpi() -> bool:
    return any(launcher.is_mpi and launcher.rank in os.environ for launcher in ALL)


def _first(names: list[str]) -> int | None:
    values = (os.environ.get(name, "") for name in names if name)
    return next((int(value) for value in values if value.isdigit()), None)
