"""On each rank: Gloo refuses the dtype of one sum; the next one is right."""

from __future__ import annotations

import torch
import torch.distributed as dist

import omnihvd.torch  # noqa: F401

dist.init_process_group("omnihvd")
rank, size = dist.get_rank(), dist.get_world_size()
try:
    dist.all_reduce(torch.full((4,), rank, dtype=torch.int16))
    print("no error")
except RuntimeError as why:
    print("refused:", why)
tensor = torch.arange(1_000_000) % 1000 + float(rank)
dist.all_reduce(tensor)
assert (tensor == torch.arange(1_000_000) % 1000 * size + size * (size - 1) / 2).all()
print("all well")
