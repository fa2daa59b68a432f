"""On each rank: groups that are destroyed while DDP still has them, right after a collective.

Gloo's threads then drop the collective's tensors, for which they need Python's lock."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import omnihvd.torch  # noqa: F401

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
store = dist.distributed_c10d._get_default_store()
dist.destroy_process_group()
for i in range(int(sys.argv[1])):
    prefix = dist.PrefixStore(str(i), store)
    dist.init_process_group("gloo", store=prefix, rank=rank, world_size=size)
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    model(torch.ones(2, 4)).sum().backward()
    dist.all_gather_object([None] * size, rank)
    dist.destroy_process_group()
    del model
print("all well", flush=True)
