"""On each rank: rank 0 destroys the group while the others wait for it, and goes on for 20 s."""

from __future__ import annotations

import time
from datetime import timedelta

import torch
import torch.distributed as dist

import omnihvd.torch  # noqa: F401

dist.init_process_group("gloo", timeout=timedelta(seconds=60))
rank, size = dist.get_rank(), dist.get_world_size()
store = dist.distributed_c10d._get_default_store()
tensor = torch.full((5,), float(rank + 1))
dist.all_reduce(tensor)
assert (tensor == size * (size + 1) / 2).all()
if rank == 0:
    dist.destroy_process_group()
    store.wait([str(other) for other in range(1, size)], timedelta(seconds=20))
else:
    begun = time.monotonic()
    try:
        dist.broadcast(tensor, 0)
        print("no error")
    except RuntimeError as why:
        print(f"after {time.monotonic() - begun:.1f} s: {why}")
    store.set(str(rank), "")
