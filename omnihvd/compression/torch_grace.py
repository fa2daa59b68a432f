"""GRACE's communicators in Horovod's PyTorch optimizer: they send compress()'s tensors."""

from __future__ import annotations

from typing import Any, Callable

import torch
from torch import Tensor

from omnihvd.compression import counters
from omnihvd.compression.compressor import Compressor
from omnihvd.compression.methods.grace import GraceObjects
from omnihvd.compression.split import ParameterState


class Sums:
    """The sums of one optimizer."""

    def __init__(self, compressor: Compressor, optimizer: Any) -> None:
        rule = compressor.config.rule
        assert isinstance(rule, GraceObjects)
        self._rule, self._ranks = rule, optimizer.process_set

    @torch.no_grad()
    def start(self, gradient: Tensor, state: ParameterState) -> Callable[[], Tensor] | None:
        """A function that waits, and returns the reduced gradient; None: send it whole."""
        rule = self._rule
        if not gradient.is_floating_point() or gradient.numel() == 0:
            return None
        counters.note_own_sum()
        with counters.timed(gradient.numel()):
            given = gradient.detach().clone()  # the objects may keep it
            tensors, ctx, state.memory = rule.compressed(given, state.name, state.memory)
            sent = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
            counters.add_kept(gradient.device, sent // 4)
        state.step += 1
        send = getattr(self, f"_{rule.communicator}")
        finish = send(tensors, state.name, ctx)
        return lambda: finish().view(gradient.shape).to(gradient)

    def _allreduce(self, tensors: list[Tensor], name: str, ctx: Any) -> Callable[[], Tensor]:
        from horovod.torch import mpi_ops as hvd

        op = hvd.Average if self._rule.averages else hvd.Sum
        handles = [
            hvd.allreduce_async(tensor, name=f"{name}.{i}", op=op, process_set=self._ranks)
            for i, tensor in enumerate(tensors)
        ]

        def finish() -> Tensor:
            summed = [hvd.synchronize(handle) for handle in handles]
            result: Tensor = self._rule.compressor.decompress(summed, ctx)
            return result

        return finish

    def _allgather(self, tensors: list[Tensor], name: str, ctx: Any) -> Callable[[], Tensor]:
        from horovod.torch import mpi_ops as hvd

        rows = [tensor.reshape(1) if tensor.ndim == 0 else tensor for tensor in tensors]
        sizes = torch.tensor([[len(tensor) for tensor in rows]])
        handles = [
            hvd.allgather_async(tensor.contiguous(), name=f"{name}.{i}", process_set=self._ranks)
            for i, tensor in enumerate([sizes, *rows])
        ]

        def finish() -> Tensor:
            sizes, *gathered = [hvd.synchronize(handle) for handle in handles]
            parts = [
                [part.reshape(()) for part in everyone.split(1)]
                if tensor.ndim == 0
                else everyone.split(sizes[:, i].tolist())
                for i, (tensor, everyone) in enumerate(zip(tensors, gathered))
            ]
            result: Tensor = self._rule.combined([list(own) for own in zip(*parts)], ctx)
            return result

        return finish
