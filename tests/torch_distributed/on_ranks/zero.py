"""On each rank: the same training with ZeroRedundancyOptimizer under DDP on Gloo, first without
omnihvd, then on the backend that argv names."""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

ROWS, STEPS = 20_000, 4


def train(backend: str) -> list[float]:
    """The losses of this rank."""
    dist.init_process_group(backend)
    torch.manual_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Embedding(ROWS, 16), torch.nn.Flatten(), torch.nn.Linear(8 * 16, 4)
    )
    ddp = DistributedDataParallel(model)
    optimizer = ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.SGD, lr=0.5, momentum=0.9)
    random = torch.Generator().manual_seed(dist.get_rank())
    losses = []
    for _ in range(STEPS):
        rows = torch.randint(0, ROWS, (6, 8), generator=random)
        loss = torch.nn.functional.cross_entropy(ddp(rows), rows[:, 0] % 4)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    dist.destroy_process_group()
    return losses


plain = train("gloo")

import omnihvd.torch  # noqa: E402  from here on process groups are omnihvd's

os.environ["MASTER_PORT"] = os.environ["LATER_PORT"]
losses = train(sys.argv[1])
torch.testing.assert_close(losses, plain, rtol=1e-5, atol=0)
assert len(set(losses)) == STEPS, losses
figures = omnihvd.stats()
assert figures["calls"] >= STEPS and figures["failures"] == 0, figures
assert 0 < figures["sent_of_ring"] < 0.2, figures
print("all well")
