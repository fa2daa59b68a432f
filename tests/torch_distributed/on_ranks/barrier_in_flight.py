"""On each rank: a barrier that nobody waits for yet, while rank 1 is late for the sum before it;
then one that rank 2 does not come to."""

from __future__ import annotations

import time
from datetime import timedelta

import torch
import torch.distributed as dist

import omnihvd.torch  # noqa: F401

dist.init_process_group("omnihvd", timeout=timedelta(seconds=20))
rank, size = dist.get_rank(), dist.get_world_size()
store = dist.distributed_c10d._get_default_store()
tensor, said = torch.full((3_000_000,), float(rank)), torch.full((3,), float(rank + 7))
if rank == 1:
    dist.recv(said, 0)
    assert (said == 7).all()
work = dist.all_reduce(tensor, async_op=True)
barrier = dist.barrier(async_op=True)
if rank == 0:
    assert not barrier.is_completed()
    dist.send(said, 1)
barrier.wait()
assert work.is_completed() and (tensor == size * (size - 1) / 2).all()
options = dist.BarrierOptions()
options.asyncOp, options.timeout = False, timedelta(seconds=2)  # dist.barrier(timeout=...)
if rank == 2:
    store.wait(["0", "1"])
else:
    begun = time.monotonic()
    dist.all_reduce(tensor, async_op=True)
    try:
        dist.group.WORLD.barrier(options).wait()
        print("no error")
    except RuntimeError as why:
        print(f"late after {time.monotonic() - begun:.1f} s: {why}", flush=True)
    store.set(str(rank), "")
    store.wait(["0", "1"])
print("all well", flush=True)
