"""Whether Horovod's sums reach omnihvd in this process, and why not."""

from __future__ import annotations

import functools
import os
from typing import Any

from omnihvd import carriers, engine
from omnihvd.frameworks import horovod_library
from omnihvd.log import warn_once_per_job


def horovod_problem() -> str | None:
    """Why Horovod's sums do not reach omnihvd in this process; None: they do. After hvd.init()."""
    return _first_problem(tuple(horovod_library.initialized()))


def warn_if_unused() -> None:
    """Says once, on rank 0, if Horovod's sums do not reach omnihvd."""
    problem = horovod_problem()
    if problem:
        _warn(problem)


@functools.cache
def _warn(problem: str) -> None:
    warn_once_per_job(f"OmniReduce is not in use, Horovod reduces as without it: {problem}")


@functools.cache
def _first_problem(initialized: tuple[Any, ...]) -> str | None:
    if not engine.session.settings_from_environment().enable:
        return "OMNIHVD_ENABLE=0 is set; unset it"
    return next(filter(None, map(_problem, initialized)), None)


def _problem(horovod: Any) -> str | None:
    name, library = carrier_of(horovod), horovod_library.path_of(horovod)
    carrier = carriers.carrier_named(name)
    if carrier:
        return carrier.problem(library)
    framework = horovod_library.framework_of(horovod)
    return (
        f"{framework} sums on {name} here, which omnihvd does not intercept; start the job "
        "without HOROVOD_CPU_OPERATIONS, on MPI or with `horovodrun --gloo`"
    )


def carrier_of(horovod: Any) -> str:
    """The library that this initialized Horovod sums with: NCCL, where omnihvd intercepts it, else
    the one for host memory: MPI, Gloo or oneCCL."""
    nccl = carriers.carrier_named("NCCL")
    if nccl and horovod.nccl_built() and not nccl.problem(horovod_library.path_of(horovod)):
        return "NCCL"
    if horovod.gloo_enabled():  # Horovod prefers it over all others
        return "Gloo"
    return "oneCCL" if os.environ.get("HOROVOD_CPU_OPERATIONS", "").lower() == "ccl" else "MPI"
