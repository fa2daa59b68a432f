"""Horovod's PyTorch optimizer on the union of the ranks' non-zero blocks, for any device, by
Horovod's own operations and PyTorch's operators: however Horovod was built, it sums fewer elements.

Each parameter's marks are summed first, with the maximum. A thread reads the size of the union
while the backward pass goes on, and starts the sum of exactly that.
"""

from __future__ import annotations

import time
from concurrent.futures import Future
from typing import Any, NamedTuple

import torch

from omnihvd.compression.omni_reduce import OmniReduce
from omnihvd.torch.union import SideThread, UnionRule, marks_of

PAUSE_S = 0.0005  # between looks at a sum of marks; Horovod's own wait would hold Python's lock


class _Begun(NamedTuple):
    """The sum of one parameter's union in one step."""

    handle: Any  # Horovod's; None: the union is empty
    rows: torch.Tensor | None  # of the union; None: the tensor is summed as a whole
    packed: torch.Tensor  # what is summed


class _Unions(UnionRule):
    def __init__(self, optimizer: Any, block_size: int, densest: float, least_bytes: int) -> None:
        super().__init__(block_size, densest, least_bytes)
        self._set, self._names = optimizer.process_set, optimizer._parameter_names
        self._whole = optimizer._allreduce_grad_async
        self._how = {"op": optimizer.op, "process_set": self._set}
        if optimizer.op == _horovod().Average:  # as Horovod does
            factor = optimizer.gradient_predivide_factor
            self._how |= {"prescale_factor": 1 / factor, "postscale_factor": factor}
        self._side = SideThread()

    def allreduce(self, parameter: Any) -> Any:
        """In place of the optimizer's _allreduce_grad_async: a handle, and no context."""
        if parameter.grad is None:  # perhaps not on other ranks
            parameter.grad = torch.zeros_like(parameter)
        gradient, name = parameter.grad, self._names[parameter]
        small = gradient.is_sparse or gradient.nbytes < self.least_bytes
        if small or gradient.is_complex() or not self._patience[name].looks():
            return self._whole(parameter)
        gradient = gradient.detach().contiguous()
        marks = marks_of(self.split(gradient.view(-1))[0]).int()  # Horovod sums no bytes
        handle = _horovod().allreduce_async_(
            marks, name=f"{name}.marks", op=_horovod().Max, process_set=self._set
        )
        begun: Future[_Begun] = Future()
        self._side.call(gradient.device, begun, lambda: self._begin(gradient, name, handle))
        return (lambda: self._result(gradient, begun.result())), None

    def _begin(self, gradient: torch.Tensor, name: str, handle: Any) -> _Begun:
        """Waits for the marks' sum, and starts the union's."""
        hvd = _horovod()
        while not hvd.poll(handle):
            time.sleep(PAUSE_S)
        rows = hvd.synchronize(handle).nonzero().squeeze(1)
        body, rest = self.split(gradient.view(-1))
        if self.is_dense(name, len(rows), len(body)):
            handle = hvd.allreduce_async_(gradient, name=name, **self._how)
            return _Begun(handle, None, gradient)
        packed = torch.cat([body.index_select(0, rows).view(-1), rest])
        union = f"{name}.union"
        handle = hvd.allreduce_async_(packed, name=union, **self._how) if len(packed) > 0 else None
        return _Begun(handle, rows, packed)

    def _result(self, gradient: torch.Tensor, begun: _Begun) -> torch.Tensor:
        handle, rows, packed = begun
        if handle is not None:
            _horovod().synchronize(handle)
        if rows is not None:
            body, rest = self.split(gradient.view(-1))
            end = len(packed) - len(rest)
            body.index_copy_(0, rows, packed[:end].view(-1, self.block_size))
            rest.copy_(packed[end:])
            if packed.is_cuda:  # made on the thread's stream
                for made in (packed, rows):
                    made.record_stream(torch.cuda.current_stream(made.device))
        return gradient


def _horovod() -> Any:
    from horovod.torch import mpi_ops

    return mpi_ops


def sum_unions(
    optimizer: Any, block_size: int = 256, densest: float = 0.6, least_bytes: int = 1 << 20
) -> Any:
    """Has `optimizer`, new from `hvd.DistributedOptimizer` on all ranks, sum only those blocks of
    each gradient that are not zero on some rank. Returns it.

    block_size, densest, least_bytes: as in UnionState, for each parameter. It needs groups=None,
    op=hvd.Average or hvd.Sum, and no compression. It uses Horovod's operations and PyTorch's
    operators alone, and has run on CPUs only. There `import omnihvd` alone is faster. ValueError
    where the optimizer is another.
    """
    hvd = _horovod()
    if not hasattr(optimizer, "_allreduce_grad_async"):
        raise ValueError(f"{type(optimizer).__name__} is not hvd.DistributedOptimizer's: give that")
    if optimizer._groups is not None or optimizer.op not in (hvd.Average, hvd.Sum):
        raise ValueError("sums of unions need groups=None, and op=hvd.Average or op=hvd.Sum")
    from horovod.torch.compression import Compression

    if optimizer._compression not in (Compression.none, OmniReduce):
        raise ValueError("sums of unions are exact: leave compression= out, or give OmniReduce")
    unions = _Unions(optimizer, block_size, densest, least_bytes)
    optimizer._allreduce_grad_async = unions.allreduce
    return optimizer
