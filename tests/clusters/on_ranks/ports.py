"""Prints the TCP ports on which a sum has made this rank listen."""

from __future__ import annotations

import horovod.torch as hvd
import psutil
import torch

import omnihvd  # noqa: F401


def ports() -> set[int]:
    connections = psutil.Process().net_connections(kind="tcp")
    return {c.laddr.port for c in connections if c.status == psutil.CONN_LISTEN}


hvd.init()
before = ports()
hvd.allreduce(torch.ones(100_000), op=hvd.Sum, name="x")
print("ports", *ports() - before)
