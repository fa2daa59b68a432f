"""On each of two ranks: while the other one is stopped, Horovod waits for it in MPI."""

from __future__ import annotations

import os
import signal
import time

import horovod.torch as hvd

import omnihvd

SECONDS = 2.0
hvd.init()
pids = hvd.allgather_object(os.getpid())
if hvd.rank() == 0:
    before = omnihvd.stats()["nap_seconds"]
    os.kill(pids[1], signal.SIGSTOP)
    start = time.process_time()
    time.sleep(SECONDS)
    used = time.process_time() - start
    os.kill(pids[1], signal.SIGCONT)
    slept = omnihvd.stats()["nap_seconds"] - before
    print(f"used {used:.3f} of {SECONDS:.3f} processor seconds; slept {slept:.3f}")
hvd.barrier()
hvd.shutdown()
