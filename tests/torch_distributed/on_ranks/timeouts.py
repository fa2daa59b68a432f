"""On each rank: time-outs that are set after a group was made. Rank 1 is late for each sum; what
rank 0 is told, and after how long."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import (
    AllreduceOptions,
    _get_default_store,
    _set_pg_timeout,
)

import omnihvd.torch  # noqa: F401

LONG, SHORT = timedelta(seconds=100), timedelta(seconds=2)
dist.init_process_group("omnihvd", timeout=LONG)
rank = dist.get_rank()
tensor = torch.ones(200_000)
store = _get_default_store()


def of_c10d(group: Any) -> None:
    _set_pg_timeout(SHORT, group)
    dist.all_reduce(tensor, group=group)


def of_group(group: Any) -> None:
    group.set_timeout(SHORT)
    dist.all_reduce(tensor, group=group)


def of_sum(group: Any) -> None:
    options = AllreduceOptions()
    options.timeout = SHORT
    group.allreduce([tensor], options).wait()


cold = dist.new_group(timeout=LONG)
warm = {late: dist.new_group(timeout=LONG) for late in (of_c10d, of_group, of_sum)}
for group in warm.values():
    dist.all_reduce(tensor, group=group)
groups = [*warm.items(), (of_c10d, cold)]
dist.barrier()
if rank == 1:
    store.wait(["told"])
    store.set("heard", "")
else:
    for late, group in groups:
        begun = time.monotonic()
        try:
            late(group)
            print("no error")
        except dist.DistBackendError as why:
            print(f"{late.__name__} {time.monotonic() - begun:.1f} s: {why}")
    store.set("told", "all")
    store.wait(["heard"])  # the store ends with this rank
print("all well")
os._exit(0)
