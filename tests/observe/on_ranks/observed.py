"""On each rank: trains a table for 12 steps; then looks at itself as others would."""

from __future__ import annotations

import json
import os
import urllib.request

import omnihvd
import omnihvd.torch

import horovod.torch as hvd  # isort: skip
import torch

from omnihvd.observe import answers, top

try:
    import board
except ImportError:  # TensorBoard is not installed
    board = None

hvd.init()
model = torch.nn.Embedding(5000, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
if board and hvd.rank() == 0:
    summary = board.SummaryWriter(os.environ["BOARD"])
    writer = omnihvd.torch.StatsWriter(summary, optimizer, every=5)
for _ in range(12):
    optimizer.zero_grad()
    model(torch.arange(40 * hvd.rank(), 40 * hvd.rank() + 40)).sum().backward()
    optimizer.step()
    hvd.barrier()
if board and hvd.rank() == 0:
    writer.close()
    summary.close()

port = int(os.environ["OMNIHVD_METRICS"]) + hvd.local_rank()
with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
    metrics = answer.read().decode()
mine = top.by_process([f for f in answers.here().processes if f["script"] == "observed.py"])
hvd.barrier()  # nobody goes before all have looked
seen = sorted(f["rank"] for f in mine.values())
found = {"metrics": metrics, "seen": seen, "top": top.rows(mine, {})}
print("FOUND " + json.dumps(found))
