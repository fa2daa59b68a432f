"""On each rank: omnihvd is imported when there is a process group already."""

from __future__ import annotations

import torch
import torch.distributed as dist
from contributions import part, total

dist.init_process_group("gloo")
import omnihvd  # noqa: E402, after that it leaves the group to Gloo

rank, everyone = dist.get_rank(), list(range(dist.get_world_size()))
for group, taken in ((None, 0), (dist.new_group(), 1)):
    before = omnihvd.Statistics()
    dist.all_reduce(tensor := part(rank, 100_000), group=group)
    assert torch.equal(tensor, total(everyone, 100_000))
    assert sum(way["calls"] for way in before.read()["ways"].values()) == taken, taken
dist.destroy_process_group()
print("all well")
