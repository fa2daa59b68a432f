"""On each rank: NaN, infinities and -0.0."""

from __future__ import annotations

import numpy as np
from gpu_rank import *

import omnihvd

COUNT = 3_000


def main() -> None:
    use_device()
    stream, comm = Stream(), Communicator("all")
    for dtype in (np.float16, np.float32, np.float64):
        for in_place in (True, False):
            mine = np.zeros(COUNT, dtype)
            mine[:1000] = -0.0  # whole blocks of it: zero, and nobody sends them
            if RANK == 0:
                mine[1500], mine[1600], mine[1700] = np.nan, np.inf, -np.inf
            if RANK == 1:
                mine[1600], mine[2100] = -np.inf, 3
            mine[2990:] = 1 if RANK == 0 else -1  # sums of zero, in the ragged block
            source = Array(mine)
            target = source if in_place else Array(np.full(COUNT, 9, dtype))
            before = omnihvd.stats()["bytes_sent"]
            name = np.dtype(dtype).name
            assert comm.allreduce(stream, source, target, name) == SUCCESS
            stream.wait()
            assert omnihvd.stats()["bytes_sent"] - before < 8_000 * SIZE
            got = target.host
            assert np.isnan(got[[1500, 1600]]).all() and got[1700] == -np.inf and got[2100] == 3
            assert (got[2990:] == 2 - SIZE).all()
            assert not np.signbit(got[:1000]).any(), "-0.0 is left"
            rest = np.delete(got[:2990], [1500, 1600, 1700, 2100])
            assert (rest == 0).all()
    comm.destroy()
    print("all well")


main()
