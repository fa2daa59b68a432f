"""On each rank: rank 1 does something else while the others sum."""

from __future__ import annotations

import threading

import horovod.torch as hvd
import torch

import omnihvd  # noqa: F401

hvd.init()
hvd.allreduce(torch.ones(100_000), name="first")
if hvd.rank() == 1:
    threading.Event().wait()  # until the launcher ends this rank
hvd.allreduce(torch.ones(100_000), name="second")
