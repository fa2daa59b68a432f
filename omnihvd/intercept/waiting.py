"""Lets Horovod's and Open MPI's threads sleep while they wait for a sum, instead of polling.

Each rank of a Horovod job has two threads that poll: the training script's, in `synchronize()`, and
Horovod's own, in MPI. On a host without spare cores they slow the very sum that they wait for; on
other hosts they slow the training.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from omnihvd import engine
from omnihvd.intercept import horovod_library

FUNCTION = "sched_yield"
REPLACEMENT = "omnihvd_sched_yield"
SLEEP, SHORTER_SLEEP = "nanosleep", "omnihvd_nanosleep"  # of Horovod's own thread, between cycles
OPEN_MPI = "/libopen-pal.so"  # in the path of the library that polls
# Open MPI's own setting, which it reads in MPI_Init: without, its waiting threads never yield.
YIELDS = "OMPI_MCA_mpi_yield_when_idle"


def sleep_instead_of_polling(settings: Any) -> None:
    """Takes effect when Horovod is loaded. Call it before MPI is initialised."""
    if settings.polite:
        horovod_library.on_load(install_hooks)
        horovod_library.wrap_init(_mpi_yields())


def install_hooks() -> None:
    for path in [OPEN_MPI, *horovod_library.loaded()]:
        engine.hook.install(path, FUNCTION, str(engine.LIBRARY), REPLACEMENT)
    for path in horovod_library.loaded():
        engine.hook.install(path, SLEEP, str(engine.LIBRARY), SHORTER_SLEEP)


@contextlib.contextmanager
def _mpi_yields() -> Iterator[None]:
    """Sets it only while hvd.init(), and so MPI_Init, runs: children must not inherit it."""
    ours = YIELDS not in os.environ
    if ours:
        os.environ[YIELDS] = "1"
    try:
        yield
    finally:
        if ours:
            os.environ.pop(YIELDS, None)
