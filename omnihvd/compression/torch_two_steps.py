"""Sums in two exchanges (two_steps.py) in Horovod's PyTorch optimizer.

If a handle is a function, Horovod waits for it by calling it. The first call starts the second
exchanges of all parameters, in the order of their names. By then all ranks have started the first
exchanges, so no rank waits for an exchange that another has yet to start.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Callable

import torch
from torch import Tensor

from omnihvd.compression import counters, torch_ops
from omnihvd.compression.compressor import Compressor
from omnihvd.compression.split import ParameterState
from omnihvd.compression.two_steps import Ranks, TwoSteps, begin


@dataclass
class _Pending:
    steps: TwoSteps
    handle: Any
    bytes: int  # of codes that this rank sends to others by it
    second: bool = False  # whether the handle is of the second exchange


class Sums:
    """One optimizer's sums. Collective: all ranks start the same parameters before any waits."""

    def __init__(self, compressor: Compressor, optimizer: Any) -> None:
        self._compressor = compressor
        self._set, self._op = optimizer.process_set, optimizer.op
        self._pending: dict[str, _Pending] = {}

    @torch.no_grad()
    def start(self, gradient: Tensor, state: ParameterState) -> Callable[[], Tensor] | None:
        """A function that waits, and returns the reduced gradient; None: send it whole."""
        from horovod.torch.mpi_ops import Average

        rule = self._compressor.config.summed
        if not gradient.is_floating_point() or not rule.takes(tuple(gradient.shape)):
            return None
        ranks = Ranks(self._set.rank(), self._set.size(), self._op == Average)
        steps = begin(torch_ops, self._compressor, state, ranks)
        sent = self._exchange(steps, 0, state.name, steps.first(gradient))
        self._pending[state.name] = _Pending(steps, *sent)
        return lambda: self._finish(state.name).view(gradient.shape).to(gradient)

    @torch.no_grad()
    def _finish(self, name: str) -> Tensor:
        if not self._pending[name].second:
            for other in sorted(self._pending):
                pending = self._pending[other]
                payload = pending.steps.second(_wait(pending))
                sent = self._exchange(pending.steps, 1, other, payload)
                self._pending[other] = _Pending(pending.steps, *sent, second=True)
        pending = self._pending.pop(name)
        return torch.as_tensor(pending.steps.result(_wait(pending)))

    def _exchange(self, steps: TwoSteps, number: int, name: str, payload: Any) -> tuple[Any, int]:
        """Its handle, and the bytes of codes that this rank sends to others."""
        from horovod.torch import mpi_ops as hvd

        kind, of = steps.exchanges[number]
        how: dict[str, Any] = {"name": f"{name}.{of}", "process_set": self._set}
        if kind == "average":
            return hvd.allreduce_async_(payload.contiguous(), op=hvd.Average, **how), 0
        if kind == "allgather":  # as in a ring
            others = (self._set.size() - 1) * len(payload)
            return hvd.allgather_async(torch.from_numpy(payload), **how), others
        code, splits = payload
        handle = hvd.alltoall_async(torch.from_numpy(code), torch.from_numpy(splits), **how)
        return handle, len(code) - int(splits[self._set.rank()])


def _wait(pending: _Pending) -> Any:
    """Waits for its exchange. One that ended beside the backward pass has no time that is known."""
    from horovod.torch.mpi_ops import poll, synchronize

    beside, begun = not pending.second and poll(pending.handle), time.perf_counter()
    received = synchronize(pending.handle)
    received = received[0] if isinstance(received, tuple) else received
    if pending.steps.exchanges[0][0] == "average":
        return received
    counters.add_codes(pending.bytes, None if beside else time.perf_counter() - begun)
    return received.numpy()
