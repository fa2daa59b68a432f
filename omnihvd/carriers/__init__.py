"""Backends: the libraries with an allreduce that omnihvd intercepts, each a module.

To add one, write its module and name it here.
"""

from __future__ import annotations

from typing import Protocol

from omnihvd.carriers import gloo, mpi, nccl


class Carrier(Protocol):
    LIBRARY: str  # "MPI", ...

    def install(self) -> None:
        """Hooks those that call the library: now if they are loaded, else once they are."""

    def describe(self, library: str) -> str:
        """A description of the hooks in this library."""

    def problem(self, library: str) -> str | None:
        """Why the sums that this loaded library (its path) makes over LIBRARY do not reach
        omnihvd; None: they do."""


ALL: tuple[Carrier, ...] = (nccl, mpi, gloo)


def carrier_named(library: str) -> Carrier | None:
    """The backend with this LIBRARY."""
    return next((carrier for carrier in ALL if library == carrier.LIBRARY), None)
