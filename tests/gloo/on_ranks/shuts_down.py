"""On each of two ranks: sums over Horovod's Gloo and shuts Horovod down. Tells how many TCP
connections it had before and after."""

from __future__ import annotations

import horovod.torch as hvd
import psutil
import torch

import omnihvd

COUNT = 100_000


def connections() -> int:
    open_ones = psutil.Process().net_connections("tcp")
    return sum(c.status in ("ESTABLISHED", "CLOSE_WAIT") for c in open_ones)


hvd.init()
summed = hvd.allreduce(torch.arange(COUNT) + float(hvd.rank()), op=hvd.Sum, name="x")
assert torch.equal(summed, torch.arange(COUNT) * 2.0 + 1)
before = connections()
hvd.shutdown()
assert omnihvd.stats()["calls"] == 1
print("CONNECTIONS", before, connections())
