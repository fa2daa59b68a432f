"""On each rank: a sum under Horovod, and `omnihvd check --job`, where some have another release.

argv: `sums` or `check`; the folder of that release; its ranks."""

from __future__ import annotations

import os
import sys

rank = os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["HOROVOD_RANK"]
if rank in sys.argv[3:]:
    sys.path.insert(0, sys.argv[2])
import omnihvd  # noqa: E402

if rank in sys.argv[3:]:
    assert omnihvd.__file__.startswith(sys.argv[2])

if sys.argv[1] == "check":
    from omnihvd.cli import main

    sys.exit(main(["check", "--job", "--json"]))

import horovod.torch as hvd  # noqa: E402
import torch  # noqa: E402

hvd.init()
index = torch.arange(300_000)
x = torch.where(index // 256 % 3 == 0, index % 7 + hvd.rank(), 0).float()
expected = index % 7 * hvd.size() + hvd.size() * (hvd.size() - 1) // 2
try:
    x = hvd.allreduce(x, op=hvd.Sum, name="x")
except Exception as why:
    print(f"rank {rank} failed: {why}", flush=True)
    os._exit(1)
assert torch.equal(x, torch.where(index // 256 % 3 == 0, expected, 0).float())
assert omnihvd.stats()["calls"] == 1, omnihvd.stats()
print(f"rank {rank} is right", flush=True)
