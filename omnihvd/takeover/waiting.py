"""Lets Horovod's and Open MPI's threads sleep while they wait for a sum, instead of polling.

Each rank of a Horovod job has two threads that poll: the training script's, in `synchronize()`, and
Horovod's own, in MPI. Where a host has no cores to spare they take them from the very sum that they
wait for, and where it has, from the training.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from omnihvd import engine
from omnihvd.frameworks import horovod_library

FUNCTION = "sched_yield"
REPLACEMENT = "omnihvd_sched_yield"
SLEEP, SHORTER_SLEEP = "nanosleep", "omnihvd_nanosleep"  # of Horovod's own thread, between cycles
OPEN_MPI = "/libopen-pal.so"  # in the path of the library that polls
# Open MPI's own setting, which it reads in MPI_Init: without, its waiting threads never yield.
YIELDS = "OMPI_MCA_mpi_yield_when_idle"


def sleep_instead_of_polling(settings: Any) -> None:
    """From Horovod's loading on; MPI is not to be initialised yet."""
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
    """While hvd.init() runs, and with it MPI_Init: children of this process have their own wish."""
    ours = YIELDS not in os.environ
    if ours:
        os.environ[YIELDS] = "1"
    try:
        yield
    finally:
        if ours:
            os.environ.pop(YIELDS, None)
