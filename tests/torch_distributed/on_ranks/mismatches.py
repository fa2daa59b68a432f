"""On each rank, under TORCH_DISTRIBUTED_DEBUG=DETAIL: the last rank calls something else than a sum
that omnihvd would make. All are told at once, and go on.

Without DDP: there PyTorch 2.13 crashes in c10d::Logger::set_env_variables, also without omnihvd.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from contributions import part, total

import omnihvd.torch

dist.init_process_group("gloo", timeout=timedelta(seconds=30))
rank, size = dist.get_rank(), dist.get_world_size()
COUNT = 100_000
odd = rank == size - 1  # the rank that differs
scatter: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def tensor(count: int = COUNT, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return part(rank, count, dtype)


def rows(width: int) -> torch.Tensor:
    return torch.sparse_coo_tensor([[1]], torch.ones(1, width), (1000, width))


# The last rank's call and its name in an error; then the other ranks' call and name.
CASES = [
    (lambda: dist.all_reduce(tensor(COUNT + 1)), r"\[100001\]"),
    (lambda: dist.all_reduce(tensor(10)), r"\[10\]"),
    (lambda: dist.all_reduce(tensor(COUNT, torch.int32)), "Int"),
    (lambda: dist.broadcast(tensor(), 0), "OpType=BROADCAST"),
    (lambda: dist.reduce(tensor(), 0), "OpType=REDUCE"),
]
# Here PyTorch's message names a rank's own call rightly, and the other one's not always.
ODDER_CASES = [
    (lambda: dist.all_reduce(tensor().view(10, -1)), r"\[10, 10000\]"),
    (lambda: dist.barrier(), "OpType=BARRIER"),
    (lambda: scatter(torch.empty(COUNT), tensor(size * COUNT)), "OpType=_REDUCE_SCATTER_BASE"),
]
for call, name in CASES + ODDER_CASES:
    try:
        call() if odd else dist.all_reduce(tensor(), async_op=True).wait()
    except RuntimeError as why:
        message = str(why)
    else:
        raise AssertionError(f"no error, where one rank calls {name}")
    names = [name, r"OpType=ALLREDUCE, TensorShape=\[100000\]"]
    if (call, name) in ODDER_CASES:
        names = names[:1] if odd else names[1:]
    assert "mismatch" in message and all(re.search(each, message) for each in names), message

# Calls that agree go on.
dist.all_reduce(agreed := tensor())
assert torch.equal(agreed, total(list(range(size)), COUNT))
dist.all_reduce_coalesced(pair := [tensor(), tensor(5).view(5, 1)])
assert torch.equal(pair[0], agreed)
dist.all_reduce(agreed := tensor().view(100, -1).t())
assert torch.equal(agreed, total(list(range(size)), COUNT).view(100, -1).t())
dist.all_reduce(agreed := rows(512))
assert agreed.to_dense()[1].eq(size).all()
scatter(share := torch.empty(COUNT), tensor(size * COUNT))
own = slice(rank * COUNT, (rank + 1) * COUNT)
assert torch.equal(share, total(list(range(size)), size * COUNT)[own])
figures = omnihvd.stats()
assert figures["calls"] >= 4 and figures["failures"] == 0, figures
dist.destroy_process_group()
print("all well")
