"""Horovod's PyTorch optimizer on the union of the ranks' non-zero blocks, for any device, by
Horovod's own operations and PyTorch's operators: however Horovod was built, it sums fewer elements.

Each parameter's marks are summed first, with the maximum. A thread reads the size of the union
while the backward pass goes on, and starts the sum of exactly that.
"""

from __future__ import annotations

import queue
import threading
import time
from typing import Any

import torch

from omnihvd.compression.omni_reduce import OmniReduce
from omnihvd.torch.union import Patience, marks_of

PAUSE_S = 0.0005  # between looks at a sum of marks; Horovod's own wait would hold Python's lock


class _Sum:
    """One parameter's sum in one step."""

    def __init__(self, gradient: torch.Tensor, name: str, patience: Patience) -> None:
        self.gradient, self.name, self.patience = gradient, name, patience
        self.handle: Any = None  # of Horovod: the marks' sum, then the union's
        self.packed = self.rows = torch.empty(0)
        self.dense = False
        self.error: Exception | None = None
        self.begun = threading.Event()  # the union's sum has, or failed


class _Unions:
    def __init__(self, optimizer: Any, block_size: int, densest: float, least_bytes: int) -> None:
        self.block_size, self.densest, self.least_bytes = block_size, densest, least_bytes
        self._set, self._names = optimizer.process_set, optimizer._parameter_names
        self._whole = optimizer._allreduce_grad_async
        self._how = {"op": optimizer.op, "process_set": self._set}
        if optimizer.op == _horovod().Average:  # as Horovod does
            factor = optimizer.gradient_predivide_factor
            self._how |= {"prescale_factor": 1 / factor, "postscale_factor": factor}
        self._patience: dict[str, Patience] = {}
        self._asked: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._stream: Any = None

    def allreduce(self, parameter: Any) -> Any:
        """In place of the optimizer's _allreduce_grad_async: a handle, and no context."""
        if parameter.grad is None:  # perhaps not on other ranks
            parameter.grad = torch.zeros_like(parameter)
        gradient, name = parameter.grad, self._names[parameter]
        patience = self._patience.setdefault(name, Patience())
        small = gradient.is_sparse or gradient.nbytes < self.least_bytes
        if small or gradient.is_complex() or not patience.looks():
            return self._whole(parameter)
        gradient = gradient.detach().contiguous()
        one = _Sum(gradient, name, patience)
        module = torch.get_device_module(gradient.device)
        marks = marks_of(self._split(gradient)[0]).int()  # Horovod sums no bytes
        one.handle = _horovod().allreduce_async_(
            marks, name=f"{name}.marks", op=_horovod().Max, process_set=self._set
        )
        ready = module.Event()
        ready.record()
        if self._thread is None:
            self._stream = module.Stream()
            self._thread = threading.Thread(target=self._run, name="omnihvd unions", daemon=True)
            self._thread.start()
        self._asked.put((one, module, ready))
        return (lambda: self._result(one)), None

    def _split(self, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The gradient's blocks, one a row, and the elements behind them."""
        flat = gradient.view(-1)
        end = len(flat) // self.block_size * self.block_size
        return flat[:end].view(-1, self.block_size), flat[end:]

    def _run(self) -> None:
        while True:
            one, module, ready = self._asked.get()
            try:
                with module.stream(self._stream), torch.no_grad():
                    self._stream.wait_event(ready)
                    self._begin(one)
            except Exception as why:
                one.error = why
            one.begun.set()
            del one

    def _begin(self, one: _Sum) -> None:
        """Waits for the marks' sum, and starts the union's."""
        hvd = _horovod()
        while not hvd.poll(one.handle):
            time.sleep(PAUSE_S)
        marks = hvd.synchronize(one.handle)
        body, rest = self._split(one.gradient)
        one.rows = marks.nonzero().squeeze(1)
        one.dense = len(one.rows) > self.densest * len(body)
        one.patience.learn(one.dense)
        if one.dense:
            one.handle = hvd.allreduce_async_(one.gradient, name=one.name, **self._how)
            return
        one.packed = torch.cat([body.index_select(0, one.rows).view(-1), rest])
        one.handle = None
        if len(one.packed) > 0:
            name = f"{one.name}.union"
            one.handle = hvd.allreduce_async_(one.packed, name=name, **self._how)

    def _result(self, one: _Sum) -> torch.Tensor:
        one.begun.wait()
        if one.error:
            raise one.error
        if one.handle is not None:
            _horovod().synchronize(one.handle)
        if not one.dense:
            body, rest = self._split(one.gradient)
            end = len(one.packed) - len(rest)
            body.index_copy_(0, one.rows, one.packed[:end].view(-1, self.block_size))
            rest.copy_(one.packed[end:])
            if one.packed.is_cuda:  # made on the thread's stream
                for made in (one.packed, one.rows):
                    made.record_stream(torch.cuda.current_stream(made.device))
        return one.gradient


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
    if block_size < 1:
        raise ValueError(f"a block of {block_size} elements: give it one or more")
    unions = _Unions(optimizer, block_size, densest, least_bytes)
    optimizer._allreduce_grad_async = unions.allreduce
    return optimizer
