"""A program's own message that the other rank needs before it sums, and which MPI moves only while
this rank is in a call of its. Argument: `never`: the other rank waits for one that nobody sends."""

from __future__ import annotations

import sys

import numpy as np
from mpi4py import MPI

world = MPI.COMM_WORLD
for turn in range(3):
    large = np.full(2_000_000, turn if world.rank == 0 else -1, np.float32)
    mine = np.full(300_000, world.rank + 1, np.float32)
    request = MPI.REQUEST_NULL
    if world.rank == 1:
        world.Recv(large, 0)
        assert (large == turn).all()
    elif len(sys.argv) == 1 or turn == 0:
        request = world.Isend(large, 1)
    world.Allreduce(MPI.IN_PLACE, mine)
    assert (mine == 3).all()
    request.Wait()
print("all well")
