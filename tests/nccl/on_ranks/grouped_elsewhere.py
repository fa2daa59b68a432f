"""On each rank: two communicators. The odd ranks make their calls in one group, the others one by
one. NCCL allows that, as each has a stream of its own."""

from __future__ import annotations

import numpy as np
from gpu_rank import *

COUNT, F32 = 5_000, "float32"


def main() -> None:
    use_device()
    comms = [Communicator(name) for name in "ab"]
    streams = [Stream() for _ in comms]
    for round_ in range(4):
        first = round_ % 2  # the even ranks begin with either of them
        tensors = [Array(np.full(COUNT, RANK + 10 * i + round_, np.float32)) for i in (1, 2)]
        if RANK % 2:
            group_start()
        for i in (first, 1 - first):
            assert comms[i].allreduce(streams[i], tensors[i], tensors[i], F32) == SUCCESS
            if RANK % 2 == 0 and round_ > 0:  # first calls are over when all ranks have made them
                streams[i].wait()
        if RANK % 2:
            assert LIBRARY.ncclGroupEnd() in (SUCCESS, IN_PROGRESS)
            for comm in comms:
                assert comm.settled() == SUCCESS
        for i, stream in enumerate(streams):
            stream.wait()
            expected = sum(rank + 10 * (i + 1) + round_ for rank in range(SIZE))
            assert (tensors[i].host == expected).all()
    for comm in comms:
        comm.destroy()
    print("all well")


main()
