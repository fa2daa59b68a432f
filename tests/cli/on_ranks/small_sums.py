"""On each rank: sums that are too small to be taken, and what is said of them meanwhile."""

from __future__ import annotations

import time

import horovod.torch as hvd
import torch

from omnihvd.intercept import notices

notices.LOOK_S = 0.2
hvd.init()
for step in range(20):
    hvd.allreduce(torch.ones(10), op=hvd.Sum, name=f"x{step}")
    time.sleep(0.05)
