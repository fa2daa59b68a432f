"""Backends: the libraries with an allreduce that omnihvd intercepts, each a module.

To add one, write its module and name it here."""

from __future__ import annotations

from types import ModuleType
from typing import Any, Protocol

from omnihvd.intercept import gloo, mpi, nccl, torch_gloo


class Backend(Protocol):
    LIBRARY: str  # "MPI", ...

    def install(self) -> None:
        """Hooks those that call the library: now if they are loaded, else once they are."""

    def describe(self, library: str) -> str:
        """A description of the hooks in this library."""

    def problem(self, library: str) -> str | None:
        """Why the sums that this loaded library (its path) makes over LIBRARY do not reach
        omnihvd; None: they do."""


class HorovodBackend(Backend, Protocol):
    def sums(self, horovod: Any) -> bool:
        """Whether this initialized Horovod sums with LIBRARY, if with none of the rows above."""


class TorchBackend(Backend, Protocol):
    def in_torch(self) -> list[str]:
        """PyTorch's loaded libraries that sum with LIBRARY."""

    def intercepts(self, c10d: ModuleType) -> bool:
        """Whether the default process group's sums over LIBRARY reach omnihvd."""


HOROVOD: tuple[HorovodBackend, ...] = (nccl, gloo, mpi)
TORCH: tuple[TorchBackend, ...] = (torch_gloo, nccl)
ALL: tuple[Backend, ...] = tuple(dict.fromkeys((*HOROVOD, *TORCH)))


def backend_of(horovod: Any) -> HorovodBackend | None:
    """The row of this initialized Horovod. None: omnihvd does not know its library."""
    return next((backend for backend in HOROVOD if backend.sums(horovod)), None)
