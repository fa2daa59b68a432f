"""Lets Horovod's and Open MPI's threads sleep while they wait for a sum, instead of polling.

Each rank of a Horovod job has two threads that poll: the training script's, in `synchronize()`, and
Horovod's own, in MPI. Where a host has no cores to spare they take them from the very sum that they
wait for, and where it has, from the training.
"""

from __future__ import annotations

import os

from omnihvd import engine

FUNCTION = "sched_yield"
REPLACEMENT = "omnihvd_sched_yield"
POLLERS = ("/horovod/", "/libopen-pal.so")  # in the paths of the libraries
# Open MPI's own setting, which it reads in MPI_Init: without, its waiting threads never yield.
YIELDS = "OMPI_MCA_mpi_yield_when_idle"


def sleep_instead_of_polling() -> None:
    """Hooks the libraries that are loaded now; MPI is not to be initialised yet."""
    if not engine.session.settings_from_environment().polite:
        return
    os.environ.setdefault(YIELDS, "1")
    for text in POLLERS:
        engine.hook.install(text, FUNCTION, str(engine.LIBRARY), REPLACEMENT)
