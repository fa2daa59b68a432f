"""On each rank: rank 1 dies after a sum of Gloo's; what Gloo and omnihvd then say to the others."""

from __future__ import annotations

import os
import signal
import time
from datetime import timedelta

import torch
import torch.distributed as dist

import omnihvd.torch  # noqa: F401

dist.init_process_group("omnihvd", timeout=timedelta(seconds=15))
dist.all_reduce(torch.ones(10))
if dist.get_rank() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
for who, elements in (("Gloo", 10), ("omnihvd", 200_000), ("omnihvd again", 200_000)):
    begun = time.monotonic()
    try:
        dist.all_reduce(torch.ones(elements))
        print("no error")
    except RuntimeError as why:
        print(f"{who} after {time.monotonic() - begun:.0f} s: {why}", flush=True)
os._exit(0)
