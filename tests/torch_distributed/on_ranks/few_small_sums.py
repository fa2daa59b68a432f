"""On each rank, a host each: the first sums are the backend's, and later ones omnihvd's. Rank 1
waits for none of them at once. The argument: "taken", or "left" where a setting leaves them."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

import omnihvd

FEW_SMALL = 64
dist.init_process_group("omnihvd", timeout=timedelta(seconds=30))
rank, size = dist.get_rank(), dist.get_world_size()
before = omnihvd.Statistics()


def figures() -> tuple[int, int]:
    """Sums that omnihvd has made by its own algorithms, and those that were left as small."""
    found = before.read()
    own = sum(way["calls"] for way in found["ways"].values())
    return own, found["passed"].get("small", {"calls": 0})["calls"]


def sums(times: int, count: int = 2000, group: Any = None) -> tuple[int, int]:
    """Returns by how much the figures have grown."""
    earlier = figures()
    works, tensors = [], []
    for i in range(times):
        tensor = (torch.arange(count + i, dtype=torch.float64) + i) * (rank + 1)
        works.append(dist.all_reduce(tensor, async_op=rank == 1, group=group))
        tensors.append(tensor)
    for i, (work, tensor) in enumerate(zip(works, tensors)):
        assert work is None or work.wait()
        expected = (torch.arange(count + i, dtype=torch.float64) + i) * size * (size + 1) / 2
        assert torch.equal(tensor, expected), i
    now = figures()
    return now[0] - earlier[0], now[1] - earlier[1]


sums(FEW_SMALL - 2)
assert figures() == (0, FEW_SMALL - 2), figures()
share = torch.zeros(5)  # small reduce-scatters count, too
dist.reduce_scatter_tensor(share, torch.ones(5 * size))
assert figures() == (0, FEW_SMALL - 1) and share.eq(size).all()
tensor = torch.full((9,), float(rank))
dist.all_reduce(tensor, ReduceOp.MAX)  # any operation on few bytes counts
assert tensor.eq(size - 1).all() and figures() == (0, FEW_SMALL)
sums(40)
own, left = figures()
if sys.argv[1] == "taken":
    assert (own, left) == (40, FEW_SMALL), (own, left)
    assert before.read()["ways"]["stream"]["calls"] > 0, before.read()["ways"]
else:
    assert (own, left) == (0, FEW_SMALL + 40), (own, left)
given = torch.arange(5.0 * size) * (rank + 1)
dist.reduce_scatter_tensor(share, given)
assert torch.equal(share, torch.arange(5.0 * rank, 5.0 * rank + 5) * size * (size + 1) / 2)
assert figures()[0] == own + (sys.argv[1] == "taken")
own = figures()[0]
dist.all_reduce_coalesced([torch.ones(3), torch.ones(4)])
assert figures()[0] == own + (sys.argv[1] == "taken")
if sys.argv[1] == "taken":  # by their bytes: 21 of 1.5 MB
    assert sums(24, 187_500, dist.new_group()) == (3, 21)
    assert sums(1, 250_000, group := dist.new_group()) == (1, 0)  # 2 MB: never
    assert sums(1, 1000, group) == (0, 1)
    assert sums(1, 2_000_000, group) == (1, 0) and sums(1, 1000, group) == (1, 0)  # connects
dist.barrier()
dist.destroy_process_group()
print("all well")
