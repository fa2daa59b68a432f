"""On each rank: allreduces for ever; the last rank is killed in the midst of one."""

from __future__ import annotations

import os
import signal
import threading
import time

import horovod.torch as hvd
import torch
from horovod.common.exceptions import HorovodInternalError

import omnihvd

hvd.init()
start = time.monotonic()
if hvd.rank() == hvd.size() - 1:
    threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
try:
    while time.monotonic() - start < 60:
        hvd.allreduce(torch.ones(3_000_000), op=hvd.Sum, name="x")
except HorovodInternalError as why:
    seconds = time.monotonic() - start
    assert omnihvd.stats()["failures"] == 1
    print(f"rank {hvd.rank()} survived after {seconds:.1f} s: {why}", flush=True)
    time.sleep(3)  # the others are to have their say before mpirun ends the job
    os._exit(0)  # MPI_Finalize would wait for the dead rank
