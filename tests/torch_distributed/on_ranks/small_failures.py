"""On each rank: after a small sum, the last rank is killed, or calls something else; the others say
what they are told."""

from __future__ import annotations

import os
import signal
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

import omnihvd.torch  # noqa: F401

how = sys.argv[1]
dist.init_process_group("omnihvd", timeout=timedelta(seconds=20))
rank, size = dist.get_rank(), dist.get_world_size()
dist.all_reduce(torch.ones(100))
odd = rank == size - 1
tensor = torch.ones(100)
if how == "dies" and odd:
    time.sleep(0.2)  # the others wait for its part
    os.kill(os.getpid(), signal.SIGKILL)
if odd and how == "count":
    tensor = torch.ones(101)
elif odd and how == "dtype":
    tensor = torch.ones(100, dtype=torch.int32)
elif odd and how == "large":
    tensor = torch.ones(100_000, dtype=torch.float64)
begun = time.monotonic()
for attempt in ("told", "later"):
    try:
        dist.all_reduce(tensor)
        print("no error")
    except dist.DistBackendError as why:
        print(f"{attempt} after {time.monotonic() - begun:.1f} s: {why}", flush=True)
time.sleep(1)  # the others are to be told what this rank did, and not that it ended
os._exit(0)
