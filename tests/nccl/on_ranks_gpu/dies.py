"""On each rank: the last one is killed; the others get an error and end, without any time-out."""

from __future__ import annotations

import os
import signal

import torch
import torch.distributed as dist
from torch_rank import DEVICE, RANK, SIZE, begin, calls

begin(timeout_s=3600)
x = torch.ones(100_000, device=DEVICE)
for _ in range(2):
    dist.all_reduce(x)
torch.cuda.synchronize()
assert calls() == 2
print("begun", flush=True)
if RANK == SIZE - 1:
    os.kill(os.getpid(), signal.SIGKILL)
dist.all_reduce(x)
torch.cuda.synchronize()
dist.all_reduce(x)
torch.cuda.synchronize()
print("ended as if nothing had happened", flush=True)
