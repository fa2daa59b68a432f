"""On each rank: a sum that the last rank never joins is aborted, and the device is free again."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _abort_process_group
from torch_rank import DEVICE, RANK, SIZE, begin, say, wait_for

begin(timeout_s=3600)
x = torch.ones(100_000, device=DEVICE)
for _ in range(2):
    dist.all_reduce(x)
torch.cuda.synchronize()
if RANK < SIZE - 1:
    work = dist.all_reduce(x, async_op=True)
    torch.cuda._sleep(10_000_000)  # cycles: the sum has begun
    assert not work.is_completed(), "done without the others"
    _abort_process_group()
    torch.cuda.synchronize()
    assert (torch.ones(100, device=DEVICE) * 2).sum() == 200
    say(f"rank {RANK} has aborted")
else:
    for rank in range(SIZE - 1):
        wait_for(f"rank {rank} has aborted")
    _abort_process_group()
print("all well", flush=True)
