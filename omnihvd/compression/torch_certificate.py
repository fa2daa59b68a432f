"""The certificate (certificate.py) in Horovod's PyTorch optimizer.

A step's blocks are summed before the next step's first gradient: no step waits for them, and no
rank leaves the job before all have begun the sum.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from omnihvd.compression import torch_ops
from omnihvd.compression.certificate import ALONE, Blocks


class Certificate:
    """One optimizer's. Collective: all ranks take gradients in each step, and end it."""

    def __init__(self, compressor: Any, optimizer: Any) -> None:
        names, block_size = optimizer._parameter_names, compressor.config.block_size
        ordered = sorted(names, key=names.get)
        self._numbers = {parameter: number for number, parameter in enumerate(ordered)}
        self._blocks = Blocks(compressor.gauge, map(torch.numel, ordered), block_size)
        self._set, self._op = optimizer.process_set, optimizer.op
        self._name = f"omnihvd.certificate.{names[ordered[0]]}"
        self._own = torch.zeros(self._blocks.length, device=ordered[0].device)
        self._last: Any = None  # the last step's, own and received
        self._handle: Any = None  # of their sum
        self._taken: set[Any] = set()  # in this step: another optimizer has the others

    def take(self, parameters: Any) -> None:
        """Copies the step's blocks of gradients, before they are compressed."""
        from horovod.torch.mpi_ops import allreduce_async_

        if self._last is not None and self._handle is None:
            self._last[0][-1] = self._blocks.gauge.vote
            how = {"name": self._name, "op": self._op, "process_set": self._set, **ALONE}
            self._handle = allreduce_async_(self._last[0], **how)
        for parameter in parameters:
            self._taken.add(parameter)
            self._put(self._own, parameter)

    def end_step(self) -> None:
        from horovod.torch.mpi_ops import Sum, synchronize

        if self._handle is not None:
            both = torch_ops.numpy(synchronize(self._handle)), torch_ops.numpy(self._last[1])
            self._blocks.compare(*both, self._set.size() if self._op == Sum else 1)
        self._last, self._handle = (self._own, torch.zeros_like(self._own)), None
        for parameter in self._taken:
            self._put(self._last[1], parameter)
        self._taken.clear()
        self._own = torch.zeros_like(self._own)
        self._blocks.step += 1

    def _put(self, out: Tensor, parameter: Tensor) -> None:
        gradient = parameter.grad
        if gradient is not None and not gradient.is_sparse and gradient.is_floating_point():
            self._blocks.put(out, self._numbers[parameter], gradient.detach().reshape(-1))
