"""The ranks of a host sum before anything is compressed: OMNIHVD_COMPRESS_FIRST=0, PyTorch.

When a gradient is there, its mean over the ranks of the host is begun, in a process set of theirs.
Horovod waits for a handle that is a function by calling it: the first that is called compresses all
these means, in the order of their names, and begins the sums of what is sent; all ranks have begun
all means by then. The ranks of a host have the same mean, so the same rest, and send the same.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from typing import Any, Callable

import torch
from torch import Tensor

from omnihvd import engine
from omnihvd.compressors.torch_split import ParameterState
from omnihvd.frameworks import horovod_library

_here: list[Any] = []  # the process set of this host's ranks, once it is known
SWITCH = "HOROVOD_DYNAMIC_PROCESS_SETS"


@dataclass
class _Pending:
    state: ParameterState
    handle: Any
    second: bool = False  # whether the handle is of the sum over all ranks


class Sums:
    """Of one optimizer. Collective: all ranks start the same parameters before any waits."""

    def __init__(self, backend: Any, optimizer: Any) -> None:
        if optimizer.process_set.process_set_id != 0 or optimizer._groups is not None:
            raise ValueError(
                "OMNIHVD_COMPRESS_FIRST=0 needs an optimizer of all ranks, with groups=None"
            )
        self._backend, self._op, self._all = backend, optimizer.op, optimizer.process_set
        self._pending: dict[str, _Pending] = {}

    @torch.no_grad()
    def start(self, gradient: Tensor, state: ParameterState) -> Callable[[], Tensor] | None:
        """A function that waits, and returns the reduced gradient; None: send it whole."""
        from horovod.torch.mpi_ops import Average, allreduce_async_

        if not gradient.is_floating_point() or gradient.numel() == 0:
            return None
        own = gradient.clone(memory_format=torch.contiguous_format)
        among = ranks_of_host()
        handle = allreduce_async_(own, name=f"{state.name}.host", op=Average, process_set=among)
        self._pending[state.name] = _Pending(state, handle)
        return lambda: self._finish(state.name)

    @torch.no_grad()
    def _finish(self, name: str) -> Tensor:
        from horovod.torch.mpi_ops import synchronize

        if not self._pending[name].second:
            for other in sorted(self._pending):
                self._start_second(self._pending[other])
        summed = synchronize(self._pending.pop(name).handle)
        received: Tensor = self._backend.received(summed, self._all.size())
        return received

    def _start_second(self, pending: _Pending) -> None:
        from horovod.torch.mpi_ops import allreduce_async_, synchronize

        sent = self._backend.sent(synchronize(pending.handle), pending.state, self._all.size())
        name = f"{pending.state.name}.sent"
        pending.handle = allreduce_async_(sent, name=name, op=self._op, process_set=self._all)
        pending.second = True


def allow_process_sets() -> None:
    """Before hvd.init(), which reads it: process sets may be added later."""
    os.environ.setdefault(SWITCH, "1")


def ranks_of_host() -> Any:
    """A process set. Collective over all ranks, the first time."""
    if not _here:
        _here.append(_make())
    return _here[0]


def _make() -> Any:
    from horovod.torch import add_process_set, allgather_object, global_process_set, rank, size

    host = engine.session.settings_from_environment().host_id or socket.gethostname()
    groups: dict[str, list[int]] = {}
    for number, name in enumerate(allgather_object(host, name="omnihvd.hosts")):
        groups.setdefault(name, []).append(number)
    if [*groups.values()] == [[*range(size())]]:
        return global_process_set
    try:
        sets = {name: add_process_set(ranks) for name, ranks in groups.items()}
    except ValueError as why:
        raise ValueError(
            f"OMNIHVD_COMPRESS_FIRST=0 needs process sets on rank {rank()}: import omnihvd before "
            f"hvd.init(), or set {SWITCH}=1 ({why})"
        ) from why
    return sets[host]


horovod_library.on_init(lambda _: _here.clear())  # an elastic job may have other hosts now
