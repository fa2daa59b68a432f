"""A script that knows nothing of omnihvd: DDP on whatever c10d chooses for the CPU."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group()
rank, size = dist.get_rank(), dist.get_world_size()
model = torch.nn.Embedding(4000, 50)
ddp = DistributedDataParallel(model)
marker = os.environ.get("DIES_ONCE")
for step in range(3):
    ddp.zero_grad()
    loss = ddp(torch.tensor([rank, 2000 + step])).sum()
    if step == 1 and rank == 1 and marker and not Path(marker).exists():
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    loss.backward()
    expected = torch.zeros(4000, 50)
    expected[:size] = 1 / size
    expected[2000 + step] = 1
    torch.testing.assert_close(model.weight.grad, expected)
print("all well")
dist.destroy_process_group()
