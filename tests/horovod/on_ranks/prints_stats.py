"""On each rank: an allreduce, in the way of a user's script. argv: an argument, to be seen."""

from __future__ import annotations

import json
import sys

import horovod.torch as hvd
import torch

hvd.init()
y = hvd.allreduce(torch.ones(1_000_000), op=hvd.Sum, name="x")
assert torch.equal(y, torch.full((1_000_000,), float(hvd.size())))
stats = sys.modules["omnihvd"].stats() if "omnihvd" in sys.modules else {}
print(json.dumps({"arguments": sys.argv[1:], "main": __name__, **stats}), flush=True)
