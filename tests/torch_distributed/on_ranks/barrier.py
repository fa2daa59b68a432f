"""On each rank: a barrier waits for the sums before it, as Gloo's does."""

from __future__ import annotations

import torch
import torch.distributed as dist

import omnihvd.torch  # noqa: F401

dist.init_process_group("omnihvd")
rank, size = dist.get_rank(), dist.get_world_size()
for _ in range(3):
    tensors = [torch.full((3_000_000,), float(rank + i)) for i in range(6)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    dist.barrier()
    for i, tensor in enumerate(tensors):
        assert (tensor == size * i + size * (size - 1) / 2).all(), f"sum {i} was not over"
    for work in works:
        work.wait()
failing = dist.all_reduce(torch.zeros(3_000_000), async_op=True)
failing.get_future().then(lambda _: dist.barrier())  # on the thread that makes the sums
failing.wait()
dist.barrier()
print("all well")
