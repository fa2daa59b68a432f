"""On each rank, one a host: a sum; then rank 0 looks at all hosts, by the laboratory's ssh."""

from __future__ import annotations

import contextlib
import io
import os

import omnihvd  # noqa: F401

import horovod.torch as hvd  # isort: skip
import torch

from benchmarks.bench.lab import SSH
from omnihvd.observe import top

hvd.init()
hvd.allreduce(torch.ones(200_000))
if hvd.rank() == 0:
    os.environ["PATH"] = f"{SSH}:{os.environ['PATH']}"
    with contextlib.redirect_stdout(io.StringIO()) as said:  # mpirun's is a terminal, of 80 columns
        top.main(["--once"])
        print("all:")
        top.main(["--once", "--all", "gone"])
    print(said.getvalue())
hvd.barrier()  # nobody goes before
