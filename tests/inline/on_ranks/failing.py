"""On each rank: rank 1 ends, or is late, where sums go through an in-network aggregator.

failing.py killed|late
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist

import omnihvd.torch

how = sys.argv[1]
torch.set_num_threads(1)
dist.init_process_group("gloo", timeout=timedelta(seconds=40))
rank, size = dist.get_rank(), dist.get_world_size()
before = omnihvd.Statistics()
x = torch.full((200_000,), float(rank))
dist.all_reduce(x)
assert x.eq(size * (size - 1) // 2).all()
used = {way for way, of in before.read()["ways"].items() if of["calls"]}
assert used == {"inline"}, used

calls = omnihvd.stats()["calls"]


def die() -> None:
    while omnihvd.stats()["calls"] == calls:
        time.sleep(1e-3)
    os.kill(os.getpid(), signal.SIGKILL)


if rank == 1 and how == "killed":
    threading.Thread(target=die, daemon=True).start()
elif rank == 1:
    time.sleep(3)
begun = time.monotonic()
try:
    dist.all_reduce(torch.ones(8_000_000))
    raise SystemExit("summed as if nothing had happened")
except dist.DistBackendError as why:
    print(f"failed within {time.monotonic() - begun:.1f} s: {why}", flush=True)
try:
    dist.all_reduce(torch.ones(200_000))
    raise SystemExit("summed after a failure")
except dist.DistBackendError:
    print("all well", flush=True)
time.sleep(1)  # the others are to have their say
os._exit(0)
