"""A rank of benchmarks/under_fire.py: sums until rank 0's clock says that the job ends.

argv: the folder of the logs; when it ends, in seconds since the epoch; elements of each sum.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import horovod.torch as hvd
import torch
from horovod.common.exceptions import HorovodInternalError

import omnihvd  # noqa: F401

FOLDER, END, COUNT = Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])


def part(rank: int, step: int) -> torch.Tensor:
    """Non-zero in a third of the blocks; rank 0's first element says whether the job ends."""
    index = torch.arange(COUNT)
    x = torch.where((index // 256 + rank) % 3 == 0, rank + 1.0 + step % 100, 0.0)
    x[0] = float(rank == 0 and time.time() > END)
    return x


@hvd.elastic.run
def train(state: hvd.elastic.TorchState) -> None:
    with (FOLDER / f"rank-{os.getpid()}").open("a", buffering=1) as log:
        print("begins", time.time(), hvd.size(), file=log)
        while True:
            try:
                summed = hvd.allreduce(part(hvd.rank(), state.step), op=hvd.Sum, name="x")
            except HorovodInternalError:
                print("fails", time.time(), hvd.size(), file=log)
                raise
            expected = torch.stack([part(rank, state.step) for rank in range(hvd.size())]).sum(0)
            assert torch.equal(summed[1:], expected[1:]), (hvd.rank(), hvd.size(), state.step)
            print("step", time.time(), hvd.size(), file=log)
            if summed[0]:
                return
            state.step += 1
            state.commit()


hvd.init()
train(hvd.elastic.TorchState(model=torch.nn.Linear(1, 1), step=0))
