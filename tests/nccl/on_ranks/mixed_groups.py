"""On each rank: sums that omnihvd takes, of one communicator, and calls that it leaves, of another,
on one stream in one group. Both must be queued in the same order on all ranks."""

from __future__ import annotations

import os
import sys

RANK = int(os.environ["RANK"])
os.environ["NCCL_DOUBLE_DELAY_US"] = str(3000 * RANK)

import numpy as np  # noqa: E402
from gpu_rank import *  # noqa: E402


def main() -> int:
    use_device()
    stream, left, taken = Stream(), Communicator("left"), Communicator("taken")
    x, y = (Array(np.ones(1000, np.float32)) for _ in range(2))
    assert taken.allreduce(stream, y, y, "float32") == SUCCESS
    assert taken.settled() == SUCCESS
    stream.wait()
    for i in range(20):
        barrier(f"round {i}")
        x.host[:] = y.host[:] = RANK + 1
        assert LIBRARY.ncclGroupStart() == SUCCESS
        assert left.allreduce(stream, x, x, "float32", MAX) == SUCCESS
        assert taken.allreduce(stream, y, y, "float32") == SUCCESS
        assert LIBRARY.ncclGroupEnd() in (SUCCESS, IN_PROGRESS)
        assert left.settled() == taken.settled() == SUCCESS
        stream.wait()
        assert (x.host == SIZE).all() and (y.host == SIZE * (SIZE + 1) / 2).all()
    for comm in (left, taken):
        comm.destroy()
    print("all well")
    return 0


sys.exit(main())
