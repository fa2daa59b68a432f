"""On each rank: three allreduces; the last rank is killed in the midst of the third.

Between two of them Horovod's own negotiation would wait for a dead rank in MPI, until the launcher
ends the job.
"""

from __future__ import annotations

import os
import signal
import threading
import time

import horovod.torch as hvd
import torch
from horovod.common.exceptions import HorovodInternalError

import omnihvd


def sums() -> int:
    return omnihvd.stats()["calls"]


def die_in_the_next(before: int) -> None:
    while sums() == before:
        time.sleep(1e-4)
    os.kill(os.getpid(), signal.SIGKILL)


signal.signal(signal.SIGTERM, signal.SIG_IGN)  # by which horovodrun ends the others
hvd.init()
x = torch.ones(20_000_000)  # takes much longer than a thread needs to notice
for _ in range(2):
    hvd.allreduce_(x, op=hvd.Sum, name="x")
start = time.monotonic()
try:
    if hvd.rank() == hvd.size() - 1:
        threading.Thread(target=die_in_the_next, args=[sums()], daemon=True).start()
    hvd.allreduce_(x, op=hvd.Sum, name="x")
except HorovodInternalError as why:
    seconds = time.monotonic() - start
    assert omnihvd.stats()["failures"] == 1
    print(f"rank {hvd.rank()} survived after {seconds:.1f} s: {why}", flush=True)
    time.sleep(3)  # the others are to have their say before mpirun ends the job
    os._exit(0)  # MPI_Finalize would wait for the dead rank
raise SystemExit("summed as if nothing had happened")
