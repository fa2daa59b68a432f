"""On each rank: small sums, until the last rank is killed where the others are in one.

The argument is a library: its `die_at_sum` stands in for the last rank's MPI_Allreduce.
"""

from __future__ import annotations

import os
import signal
import sys
import time

import horovod.torch as hvd
import torch
from horovod.common.exceptions import HorovodInternalError

import omnihvd
from omnihvd import _engine

COUNT = 2_000
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # by which the launcher ends the others
hvd.init()
rank, size = hvd.rank(), hvd.size()
index = torch.arange(COUNT, dtype=torch.float32)
for number in range(5):
    x = hvd.allreduce(index * size + rank + number, op=hvd.Sum, name="x")
    assert torch.equal(x, (index * size + number) * size + size * (size - 1) // 2)
assert "small" not in omnihvd.stats()["passed"], "MPI made the sums"
if rank == size - 1:
    assert _engine.hook.install("/horovod/", "MPI_Allreduce", sys.argv[1], "die_at_sum")
start = time.monotonic()
try:
    hvd.allreduce(index, op=hvd.Sum, name="x")
except HorovodInternalError as why:
    print(f"rank {rank} survived after {time.monotonic() - start:.1f} s: {why}", flush=True)
    time.sleep(3)  # the others are to have their say before mpirun ends the job
    os._exit(0)  # MPI_Finalize would wait for the dead rank
raise SystemExit("summed as if nothing had happened")
