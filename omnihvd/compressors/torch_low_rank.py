"""PowerSGD in Horovod's PyTorch optimizer.

If a handle is a function, Horovod waits for it by calling it. The first call starts the second sums
of all parameters, in the order of their names. By then all ranks have started the first sums, so no
rank waits for a sum that another has yet to start.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable

import torch
from torch import Tensor

from omnihvd.compressors import counters
from omnihvd.compressors.compressor import Compressor
from omnihvd.compressors.methods.low_rank import LowRank
from omnihvd.compressors.torch_split import ParameterState, first_memory


@dataclass
class _Pending:
    state: ParameterState
    total: Tensor  # rows x columns
    left: Tensor  # P
    handle: Any
    second: bool = False  # whether the handle is of Q's sum


class Sums:
    """One optimizer's sums. Collective: all ranks start the same parameters before any waits."""

    def __init__(self, compressor: Compressor, optimizer: Any) -> None:
        rule = compressor.config.rule
        assert isinstance(rule, LowRank)
        self._rule, self._feedback = rule, compressor.config.error_feedback
        self._process_set, self._op = optimizer.process_set, optimizer.op
        self._pending: dict[str, _Pending] = {}

    @torch.no_grad()
    def start(self, gradient: Tensor, state: ParameterState) -> Callable[[], Tensor] | None:
        """A function that waits, and returns the reduced gradient; None: send it whole."""
        matrix = self._rule.matrix(tuple(gradient.shape))
        if matrix is None or not gradient.is_floating_point():
            return None
        with counters.timed(gradient.numel(), own_sum=True):
            if not state.memory:
                state.memory = first_memory(self._rule, gradient, state.name)
            right = state.memory["right"]
            total = gradient.to(torch.promote_types(gradient.dtype, torch.float32))
            total = state.accumulate(total, 0.0) if self._feedback else total.contiguous()
            total = total.view(matrix)
            left = total @ right.to(total)
            counters.add_kept(gradient.device, left.numel() + right.numel())
        handle = self._sum(left, f"{state.name}.left")
        self._pending[state.name] = _Pending(state, total, left, handle)
        state.step += 1
        return lambda: self._finish(state.name).view(gradient.shape).to(gradient.dtype)

    @torch.no_grad()
    def _finish(self, name: str) -> Tensor:
        from horovod.torch.mpi_ops import Sum, synchronize

        if not self._pending[name].second:
            for other in sorted(self._pending):
                self._start_second(self._pending[other])
        pending = self._pending.pop(name)
        state, right = pending.state, synchronize(pending.handle)
        result = pending.left @ right.t()
        if self._feedback:  # the total is in the rest
            pending.total.sub_(result).nan_to_num_(0.0, 0.0, 0.0)
        if bool(torch.isfinite(right.sum())):
            state.memory["right"] = right
        return result * self._process_set.size() if self._op == Sum else result

    def _start_second(self, pending: _Pending) -> None:
        from horovod.torch.mpi_ops import synchronize

        left = synchronize(pending.handle)
        if bool(torch.isfinite(left.sum())):  # else it stays so, and so does the result
            left = torch.linalg.qr(left).Q
        pending.left, pending.second = left, True
        pending.handle = self._sum(pending.total.t() @ left, f"{pending.state.name}.right")

    def _sum(self, tensor: Tensor, name: str) -> Any:
        from horovod.torch.mpi_ops import Average, allreduce_async_

        return allreduce_async_(
            tensor.contiguous(), name=name, op=Average, process_set=self._process_set
        )
