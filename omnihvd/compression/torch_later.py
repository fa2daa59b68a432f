"""Sums in Horovod's PyTorch optimizer that begin when all gradients are there.

Where the ranks of a host sum first (OMNIHVD_COMPRESS_FIRST=0), a gradient's mean over them begins
when the gradient is ready, in the host's process set. If a handle is a function, Horovod waits for
it by calling it. The first call clips, where all gradients are clipped together. Then it compresses
all gradients in the order of their names and begins their sums; by then all ranks have begun all
means. The ranks of a host have the same mean and residual, and so send the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable

import torch
from torch import Tensor

from omnihvd.compression.split import ParameterState
from omnihvd.compression.torch_hosts import ranks_of_host


@dataclass
class _Pending:
    state: ParameterState
    given: Tensor
    handle: Any  # of the mean over the host's ranks, where hosts sum first, then of the sum
    begun: bool = False  # whether it is the sum's


class Sums:
    """One optimizer's sums. Collective: all ranks start the same parameters before any waits."""

    def __init__(self, backend: Any, optimizer: Any, hosts_first: bool) -> None:
        """backend: torch_horovod.py's."""
        if hosts_first and (
            optimizer.process_set.process_set_id != 0 or optimizer._groups is not None
        ):
            raise ValueError(
                "OMNIHVD_COMPRESS_FIRST=0 needs an optimizer of all ranks, with groups=None"
            )
        if optimizer._groups is not None:
            raise ValueError("gradients that are clipped together need groups=None")
        self._backend, self._op, self._among = backend, optimizer.op, optimizer.process_set
        self._hosts_first = hosts_first
        self._pending: dict[str, _Pending] = {}

    @torch.no_grad()
    def start(self, gradient: Tensor, state: ParameterState) -> Callable[[], Tensor] | None:
        """A function that waits, and returns the reduced gradient; None: send it whole."""
        from horovod.torch.mpi_ops import Average, allreduce_async_

        if not gradient.is_floating_point() or gradient.numel() == 0:
            return None
        own, handle = gradient.clone(memory_format=torch.contiguous_format), None
        if self._hosts_first:
            among = ranks_of_host()
            handle = allreduce_async_(own, name=f"{state.name}.host", op=Average, process_set=among)
        self._pending[state.name] = _Pending(state, own, handle)
        return lambda: self._finish(state.name)

    @torch.no_grad()
    def _finish(self, name: str) -> Tensor:
        from horovod.torch.mpi_ops import synchronize

        if not self._pending[name].begun:
            self._begin()
        summed = synchronize(self._pending.pop(name).handle)
        received: Tensor = self._backend.received(summed, self._among.size())
        return received

    def _begin(self) -> None:
        from horovod.torch.mpi_ops import allreduce_async_, synchronize

        ordered = [self._pending[name] for name in sorted(self._pending)]
        for pending in ordered if self._hosts_first else ():
            pending.given = synchronize(pending.handle)
        self._clip([pending.given for pending in ordered])
        for pending in ordered:
            sent = self._backend.sent(pending.given, pending.state, self._among.size())
            name = f"{pending.state.name}.sent"
            pending.handle = allreduce_async_(sent, name=name, op=self._op, process_set=self._among)
            pending.begun = True

    def _clip(self, gradients: list[Tensor]) -> None:
        config = self._backend.config
        if config.clip_together:
            norms = [torch.linalg.vector_norm(g, dtype=torch.float32).cpu() for g in gradients]
            norm = torch.linalg.vector_norm(torch.stack(norms))
            factor = config.clipping(norm, self._among.size())
            for gradient in gradients:
                gradient.mul_(factor.to(gradient))
