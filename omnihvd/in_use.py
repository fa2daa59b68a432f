"""Whether Horovod's sums reach omnihvd in this process, and why not."""

from __future__ import annotations

import functools
import os
from typing import Any

from omnihvd import engine, horovod_library, ways
from omnihvd.log import warn_once_per_job


@functools.cache
def horovod_problem() -> str | None:
    """Why Horovod's sums do not reach omnihvd in this process; None: they do. After hvd.init()."""
    if not engine.session.settings_from_environment().enable:
        return "OMNIHVD_ENABLE=0"
    return next(filter(None, map(_problem, horovod_library.initialized())), None)


@functools.cache
def warn_if_unused() -> None:
    """Says once, on rank 0, if `compression=OmniReduce` has no effect."""
    problem = horovod_problem()
    if problem:
        warn_once_per_job(f"OmniReduce is not in use, Horovod reduces as without it: {problem}")


def _problem(horovod: Any) -> str | None:
    library = horovod_library.path_of(horovod)
    nccl = ways.way_of("NCCL")
    if nccl and horovod.nccl_built() and nccl.problem(library) is None:
        return None  # on GPUs they do
    carrier = cpu_library(horovod)
    way = ways.way_of(carrier)
    if way:
        return way.problem(library)
    framework = horovod_library.framework_of(horovod)
    if not horovod.mpi_built():
        remedy = "build Horovod with HOROVOD_WITH_MPI=1 (omnihvd/tools/build_horovod.py does)"
    else:
        remedy = (
            "start the job with mpirun or `horovodrun --mpi`, and without HOROVOD_CONTROLLER and "
            "HOROVOD_CPU_OPERATIONS"
        )
    return f"{framework} sums on {carrier} here, which omnihvd does not stand in for; {remedy}"


def cpu_library(horovod: Any) -> str:
    """The library by which this Horovod, initialized, sums in host memory: MPI, Gloo or oneCCL."""
    chosen = os.environ.get("HOROVOD_CPU_OPERATIONS", "").lower()
    if chosen == "ccl":
        return "oneCCL"
    return "Gloo" if chosen == "gloo" or not horovod.mpi_enabled() else "MPI"
