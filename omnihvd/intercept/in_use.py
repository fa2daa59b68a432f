"""Whether Horovod's sums reach omnihvd in this process, and why not."""

from __future__ import annotations

import functools
from typing import Any

from omnihvd import engine
from omnihvd.intercept import horovod_library
from omnihvd.intercept.backends import backend_of
from omnihvd.log import warn_once


def horovod_problem() -> str | None:
    """Why Horovod's sums do not reach omnihvd in this process; None: they do. After hvd.init()."""
    return _first_problem(tuple(horovod_library.initialized()))


def warn_if_unused() -> None:
    """Says once, on rank 0, if Horovod's sums do not reach omnihvd."""
    problem = horovod_problem()
    if problem:
        warn_once(f"OmniReduce is not in use, Horovod reduces as without it: {problem}")


@functools.cache
def _first_problem(initialized: tuple[Any, ...]) -> str | None:
    if not engine.session.settings_from_environment().enable:
        return "OMNIHVD_ENABLE=0 is set; unset it"
    return next(filter(None, map(_problem, initialized)), None)


def _problem(horovod: Any) -> str | None:
    if backend := backend_of(horovod):
        return backend.problem(horovod_library.path_of(horovod))
    return (
        f"{horovod_library.framework_of(horovod)} sums on oneCCL here, which omnihvd does not "
        "intercept; start the job without HOROVOD_CPU_OPERATIONS, on MPI or with "
        "`horovodrun --gloo`"
    )
