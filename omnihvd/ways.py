"""The ways into omnihvd: the libraries whose allreduce it stands in for, each a module.

To add one: write its module, and name it here.
"""

from __future__ import annotations

from typing import Protocol

from omnihvd import gloo_hooks, mpi_hooks, nccl_hooks


class Way(Protocol):
    LIBRARY: str  # "MPI", ...

    def install(self) -> None:
        """Hooks those that call the library: now if they are loaded, else once they are."""

    def describe(self, library: str) -> str:
        """What is hooked in this library, in words."""

    def problem(self, library: str) -> str | None:
        """Why the sums that this loaded library (its path) makes over LIBRARY do not reach
        omnihvd; None: they do."""


ALL: tuple[Way, ...] = (nccl_hooks, mpi_hooks, gloo_hooks)


def way_of(library: str) -> Way | None:
    """By its LIBRARY."""
    return next((way for way in ALL if library == way.LIBRARY), None)
