"""On each rank: rank 1 is late for sums in which ranks connect, or meet for the first time."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

import omnihvd.torch  # noqa: F401
from omnihvd import OmniReduce
from omnihvd.torch.process_group import take

LATE_S = 6  # OMNIHVD_JOIN_TIMEOUT is 3
dist.init_process_group("omnihvd")
rank, world = dist.get_rank(), dist.group.WORLD
one = torch.ones(1)
dist.all_reduce(one)
assert one == 2
for count in (5_000_000, 4_000_000):  # the first connects; codecs begin with the second
    if rank == 1:
        time.sleep(LATE_S)
    tensor = torch.full((count,), float(rank + 1))
    codec = OmniReduce.natural() if count == 4_000_000 else None
    work = take(world, [tensor], codec=codec, waits=True)
    assert work is not None
    work.wait()
    assert ((tensor - 3).abs() <= (1 if codec else 0)).all()  # its sums are powers of two
print("all well")
