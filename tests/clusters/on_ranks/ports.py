"""Prints the TCP ports on which a sum has made this rank listen. argv: what to import, in order."""

from __future__ import annotations

import importlib
import sys

import psutil
import torch

for name in sys.argv[1:]:
    importlib.import_module(name)
hvd = sys.modules["horovod.torch"]


def ports() -> set[int]:
    connections = psutil.Process().net_connections(kind="tcp")
    return {c.laddr.port for c in connections if c.status == psutil.CONN_LISTEN}


hvd.init()
before = ports()
hvd.allreduce(torch.ones(100_000), op=hvd.Sum, name="x")
print("ports", *ports() - before)
