"""On each rank: rank 1 dies while the others sum; what they are told, and that they end."""

from __future__ import annotations

import os
import signal
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import omnihvd.torch

how = sys.argv[1]
dist.init_process_group("omnihvd", timeout=timedelta(seconds=60))
rank = dist.get_rank()
store = dist.distributed_c10d._get_default_store()
group = None
if how == "late":
    group, cold = (dist.new_group(timeout=timedelta(seconds=2)) for _ in range(2))
    dist.all_reduce(torch.ones(200_000), group=group)
tensor = torch.ones(200_000)
dist.all_reduce(tensor)
model = DistributedDataParallel(torch.nn.Linear(500, 500))
if how == "hook":
    model.register_comm_hook(None, omnihvd.torch.allreduce_hook)
for _ in range(2):  # before the second one buckets are made anew, with a sum of Gloo's
    model(torch.ones(1, 500)).sum().backward()
begun = time.monotonic()
if rank == 1:
    if how == "late":
        store.wait(["told"])
        sys.exit()
    os.kill(os.getpid(), signal.SIGKILL)
if how == "late":
    for attempt in ("cold", "cold later"):
        asked = time.monotonic()
        try:
            dist.all_reduce(torch.ones(200_000), group=cold)
        except dist.DistBackendError as why:
            print(f"{attempt} after {time.monotonic() - asked:.1f} s: {why}")
try:
    if how == "hook":
        model(torch.ones(1, 500)).sum().backward()
    else:
        work = dist.all_reduce(tensor, async_op=True, group=group)
        try:
            work.get_future().wait()
        except RuntimeError as why:
            assert "rank 1" in str(why)
        assert work.is_completed() and not work.is_success()
        assert isinstance(work.exception(), dist.DistBackendError)
        work.wait()
    print("no error")
except RuntimeError as why:
    assert how == "hook" or isinstance(why, dist.DistBackendError)
    print(f"{time.monotonic() - begun:.1f} s: {why}")
try:
    dist.all_reduce(torch.ones(200_000), group=group)
    print("no later error")
except dist.DistBackendError as why:
    print("later:", why)
print("seconds:", time.monotonic() - begun)
if how == "late":
    store.set("told", "")
    time.sleep(1)  # this rank has the store
dist.destroy_process_group()
