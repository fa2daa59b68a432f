"""Works for PyTorch's C++, for callers that keep a work beyond the call that returned it.

C++ keeps only the C++ part of a work written in Python. Once Python has dropped its own part, the
C++ part never ends and has no future.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import torch
from torch import distributed as dist
from torch.distributed import BuiltinCommHookType
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from omnihvd.torch.work import SumWork

cpp: Any = torch._C._distributed_c10d


def register_in_flight(tensors: Iterable[torch.Tensor], work: SumWork) -> None:
    """Makes wait_tensor() wait for the work, if the caller allows collectives in flight as inputs
    of compiled graphs. c10d's own groups do the same."""
    allowed = getattr(cpp, "_allow_inflight_collective_as_graph_input", None)
    if allowed and allowed():
        own = cpp.PythonCallbackWork(work.wait)
        for tensor in tensors:
            cpp._register_work(tensor, own)


@functools.cache
def mend_ddp() -> None:
    _mend_forward_work()
    _mend_builtin_hook()


def _mend_forward_work() -> None:
    """DDP's join() gives the reducer a work in the forward pass; the backward pass waits for it."""
    original = cpp.Reducer._set_forward_pass_work_handle

    def set_work(self: Any, work: Any, *args: Any) -> None:
        if isinstance(work, SumWork):
            work = cpp._create_work_from_future(work.get_future())
        original(self, work, *args)

    cpp.Reducer._set_forward_pass_work_handle = set_work


def _mend_builtin_hook() -> None:
    """The built-in FP16 hook expects a C++ list as the future's value, but Python's futures hold
    Python values. The Python hook in its place computes the same."""
    original = DistributedDataParallel._register_builtin_comm_hook

    @functools.wraps(original)
    def register(self: Any, kind: BuiltinCommHookType) -> None:
        ours = getattr(self.process_group, "omnihvd_intercepts", False)
        if kind != BuiltinCommHookType.FP16_COMPRESS or not ours:
            original(self, kind)
            return
        self.logger._set_comm_hook_name(str(kind))
        dist._register_comm_hook(self.reducer, self.process_group, fp16_compress_hook)

    DistributedDataParallel._register_builtin_comm_hook = register  # type: ignore[method-assign]
