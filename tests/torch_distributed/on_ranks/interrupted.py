"""On each rank: rank 0 gets a signal in a sum in which it waits for the others, and its handler
raises."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist

import omnihvd.torch  # noqa: F401


class PreemptedError(Exception):
    pass


def preempt(*_: object) -> None:
    raise PreemptedError


number, elements = signal.Signals[sys.argv[1]], int(sys.argv[2])
dist.init_process_group("omnihvd", timeout=timedelta(seconds=50))
rank = dist.get_rank()
signal.signal(signal.SIGUSR1, preempt)
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores it
tensor = torch.full((elements,), float(rank))
dist.all_reduce(tensor)
store = dist.PrefixStore("test", dist.distributed_c10d._get_default_store())
begun = time.monotonic()
if rank == 0:
    threading.Timer(0.5, lambda: os.kill(os.getpid(), number)).start()
else:
    store.get("interrupted")
try:
    dist.all_reduce(tensor)
    print("no error")
except (KeyboardInterrupt, PreemptedError) as why:
    print(f"{type(why).__name__} after {time.monotonic() - begun:.1f} s")
except dist.DistBackendError as why:
    print("failed:", why)
if rank == 0:
    store.set("interrupted", "")
    time.sleep(1)  # it has the store
