"""Sums of codes (part_sums.py) in Horovod's PyTorch optimizer, as alltoall and allgather.

Horovod waits for a handle that is a function by calling it: torch_low_rank.py says what follows.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Callable

import numpy as np
import torch
from torch import Tensor

from omnihvd.compressors import counters, part_sums
from omnihvd.compressors.compressor import Compressor
from omnihvd.compressors.rules import CodedRule
from omnihvd.compressors.torch_split import ParameterState, first_memory, split_by


@dataclass
class _Pending:
    state: ParameterState
    count: int
    handle: Any
    bytes: int  # that this rank sends to others by it
    second: bool = False  # whether the handle is of the gather


class Sums:
    """One optimizer's sums of codes.

    Collective: all ranks start the same parameters before any rank waits.
    """

    def __init__(self, compressor: Compressor, optimizer: Any) -> None:
        from horovod.torch.mpi_ops import Average

        config = compressor.config
        rule = config.codec or config.rule
        assert isinstance(rule, CodedRule)
        self._compressor, self._rule, self._feedback = compressor, rule, config.error_feedback
        self._ranks = optimizer.process_set
        self._scale = 1 / self._ranks.size() if optimizer.op == Average else 1.0
        self._pending: dict[str, _Pending] = {}

    @torch.no_grad()
    def start(self, gradient: Tensor, state: ParameterState) -> Callable[[], Tensor] | None:
        """A function that waits, and returns the reduced gradient; None: send it whole."""
        from horovod.torch.mpi_ops import alltoall_async

        if not gradient.is_floating_point() or gradient.numel() == 0:
            return None
        begin = self._of_some if self._compressor.config.codec else self._of_all
        made = begin(gradient, state)
        handle = alltoall_async(
            torch.from_numpy(made.code),
            torch.from_numpy(made.splits),
            name=f"{state.name}.parts",
            process_set=self._ranks,
        )
        sent = len(made.code) - int(made.splits[self._ranks.rank()])
        self._pending[state.name] = _Pending(state, gradient.numel(), handle, sent)
        return lambda: self._finish(state.name).view(gradient.shape).to(gradient)

    def _of_all(self, gradient: Tensor, state: ParameterState) -> part_sums.Contribution:
        with counters.timed(gradient.numel(), own_sum=True):
            if not state.memory:
                state.memory = first_memory(self._rule, gradient, state.name)
            total = gradient.to(torch.promote_types(gradient.dtype, torch.float32))
            total = state.accumulate(total, 0.0) if self._feedback else total.contiguous()
            memory = {kind: tensor.cpu().numpy() for kind, tensor in state.memory.items()}
            values = self._rule.values(_numpy(total), memory)
            state.memory = {kind: torch.from_numpy(array) for kind, array in memory.items()}
            made = part_sums.contribution(self._rule, values, self._ranks.size())
            if self._feedback:
                sent = torch.from_numpy(made.values).view(total.shape).to(total)
                total.sub_(sent).nan_to_num_(0.0, 0.0, 0.0)
            counters.add_kept(gradient.device, made.code.nbytes // 4)
        state.step += 1
        return made

    def _of_some(self, gradient: Tensor, state: ParameterState) -> part_sums.Contribution:
        """Encodes the elements that the compressor's own rule sends; their positions are exact."""
        ranks = self._ranks.size()
        sent = split_by(self._compressor, gradient.clone(), state, ranks)
        made = part_sums.contribution(self._rule, _numpy(sent), ranks)
        if self._feedback:
            rest = state.begin(gradient, 0.0)
            lost = sent.float() - torch.from_numpy(made.values).view(sent.shape).to(sent.device)
            rest.add_(lost.nan_to_num_(0.0, 0.0, 0.0).to(rest.dtype))
        return made

    @torch.no_grad()
    def _finish(self, name: str) -> Tensor:
        if not self._pending[name].second:
            for other in sorted(self._pending):
                self._start_second(self._pending[other])
        pending = self._pending.pop(name)
        codes = _wait(pending).numpy()
        result = part_sums.opened(self._rule, codes, pending.count, self._ranks.size())
        return torch.from_numpy(result)

    def _start_second(self, pending: _Pending) -> None:
        from horovod.torch.mpi_ops import allgather_async

        received = _wait(pending)
        codes = received[0] if isinstance(received, tuple) else received
        part = part_sums.part_of(pending.count, self._ranks.rank(), self._ranks.size())
        size, rest = part.stop - part.start, None
        if self._feedback:
            kept = pending.state.memory.get("sum_rest")
            fits = kept is not None and len(kept) == size  # else of another number of ranks
            rest = kept.numpy() if kept is not None and fits else np.zeros(size, np.float32)
            pending.state.memory["sum_rest"] = torch.from_numpy(rest)
        code = part_sums.summed(self._rule, codes.numpy(), size, self._scale, rest)
        name = f"{pending.state.name}.sum"
        gathered = allgather_async(torch.from_numpy(code), name=name, process_set=self._ranks)
        pending.handle, pending.second = gathered, True
        pending.bytes = (self._ranks.size() - 1) * len(code)  # as in a ring


def _wait(pending: _Pending) -> Any:
    """Waits for its exchange. One that ended beside the backward pass has no time that is known."""
    from horovod.torch.mpi_ops import poll, synchronize

    beside, begun = not pending.second and poll(pending.handle), time.perf_counter()
    received = synchronize(pending.handle)
    counters.add_codes(pending.bytes, None if beside else time.perf_counter() - begun)
    return received


def _numpy(total: Tensor) -> np.ndarray:
    flat: np.ndarray = total.detach().reshape(-1).float().cpu().numpy()
    return flat
