"""On each rank: what communicators leave behind, which is nothing."""

from __future__ import annotations

import numpy as np
from gpu_rank import *


def live() -> tuple[int, int, int, int]:
    return (
        LIBRARY.double_live_pieces(), LIBRARY.double_live_events(), LIBRARY.double_live_streams(),
        LIBRARY.double_live_comms(),
    )  # fmt: skip


def main() -> None:
    use_device()
    stream = Stream()
    x = Array(np.zeros(30_000, np.float32))
    before = live()
    for i in range(6):
        comm = Communicator(f"number {i}")
        for count in (100, 30_000, 3_000):
            x.host[:] = 1
            assert comm.allreduce(stream, x, x, "float32", count=count) == SUCCESS
            stream.wait()
            assert (x.host[:count] == SIZE).all() and (x.host[count:] == 1).all()
        # The last one is under way when the communicator ends.
        assert comm.allreduce(stream, x, x, "float32") == SUCCESS
        if i % 3 == 0:
            driver("ncclCommFinalize", comm.handle)
        if i % 3 == 2:
            stream.wait()
            comm.abort()
        else:
            comm.destroy()
        stream.wait()
        assert live() == before, f"communicator {i}: {live()}, before {before}"
    print("all well")


main()
