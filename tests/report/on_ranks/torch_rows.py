"""Trains a table; rank r touches rows 10 r .. 10 r + 19 in each step. argv: the way."""

from __future__ import annotations

import sys

import torch

ROWS, WIDTH, STEPS = 1000, 64, 8
way = sys.argv[1]
rank = 0
if way == "horovod":
    import horovod.torch as hvd

    hvd.init()
    rank = hvd.rank()
elif way == "ddp":
    import torch.distributed as dist
    import torch.distributed.nn

    dist.init_process_group("gloo")
    rank = dist.get_rank()


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(ROWS, WIDTH, sparse="sparse" in sys.argv)
        self.dense = torch.nn.Linear(WIDTH, 3)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.dense(self.table(rows)).square().sum()


torch.manual_seed(1)
model = Model()
parallel = torch.nn.parallel.DistributedDataParallel(model) if way == "ddp" else model
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
if way == "horovod":
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
for _ in range(STEPS):
    optimizer.zero_grad()
    parallel(torch.arange(10 * rank, 10 * rank + 20)).backward()
    optimizer.step()
print(f"trained {float(model.dense.weight.detach().sum()):.6f}")
if way == "ddp":
    dist.destroy_process_group()
