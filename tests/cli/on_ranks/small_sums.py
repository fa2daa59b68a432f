"""On each rank: a sum that is too small to be taken, and what is said of it after a while."""

from __future__ import annotations

import time

import horovod.torch as hvd
import torch

from omnihvd.takeover import notices

notices.A_WHILE_S = 0.5
hvd.init()
hvd.allreduce(torch.ones(10), op=hvd.Sum, name="x")
time.sleep(1.5)
