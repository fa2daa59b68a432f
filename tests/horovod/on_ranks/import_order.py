"""On each rank: imports in the order of argv, hvd.init(), an allreduce with OmniReduce.

Instead of a module: init for an early hvd.init(), bad for a setting that is wrong on rank 1.
"""

from __future__ import annotations

import importlib
import os
import sys

for name in sys.argv[1].split(","):
    if name == "init":
        importlib.import_module("horovod.torch").init()
    elif name == "bad":
        if "1" in (os.environ.get("OMPI_COMM_WORLD_RANK"), os.environ.get("HOROVOD_RANK")):
            os.environ["OMNIHVD_MIN_BYTES"] = "many"
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
