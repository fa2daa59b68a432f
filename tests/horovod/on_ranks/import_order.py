"""On each rank: imports in the order of argv, hvd.init(), an allreduce with OmniReduce."""

from __future__ import annotations

import importlib
import sys

for name in sys.argv[1].split(","):
    if name == "init":
        importlib.import_module("horovod.torch").init()
    else:
        importlib.import_module(name)

import horovod.torch as hvd  # noqa: E402
import torch  # noqa: E402

import omnihvd  # noqa: E402

if not hvd.is_initialized():
    hvd.init()
y = hvd.allreduce(torch.ones(1_000_000), op=hvd.Sum, name="x", compression=omnihvd.OmniReduce)
assert torch.equal(y, torch.full((1_000_000,), float(hvd.size())))
print("calls", omnihvd.stats()["calls"], flush=True)
