"""On each rank: a sum that fails, since rank 1's settings are wrong by then."""

from __future__ import annotations

import os

import horovod.torch as hvd
import torch

import omnihvd  # noqa: F401

hvd.init()
if hvd.rank() == 1:
    os.environ["OMNIHVD_NO_SUCH"] = "1"
hvd.allreduce(torch.ones(100_000), op=hvd.Sum, name="x")
