"""Lets Horovod's and Open MPI's threads sleep while they wait for a sum, instead of polling.

Each rank of a Horovod job has two threads that poll: the training script's, in `synchronize()`, and
Horovod's own, in MPI. Where a host has no cores to spare they take them from the very sum that they
wait for.
"""

from __future__ import annotations

from omnihvd import engine

FUNCTION = "sched_yield"
REPLACEMENT = "omnihvd_sched_yield"
POLLERS = ("/horovod/", "/libopen-pal.so")  # in the paths of the libraries


def sleep_instead_of_polling() -> None:
    """Hooks the libraries that are loaded now. (Open MPI yields if told to, or oversubscribed.)"""
    if not engine.session.settings_from_environment().polite:
        return
    for text in POLLERS:
        engine.hook.install(text, FUNCTION, str(engine.LIBRARY), REPLACEMENT)
