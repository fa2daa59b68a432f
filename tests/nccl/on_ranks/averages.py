"""On each rank: averages of numbers that add up to more than the type holds."""

from __future__ import annotations

import numpy as np
from gpu_rank import *

LARGE = {"float16": 40_000.0, "float32": 2e38}


def main() -> None:
    use_device(RANK % 2)
    stream, comm = Stream(), Communicator("all")
    for dtype, large in LARGE.items():
        for in_place in (True, False):
            mine = np.zeros(5_000, dtype)
            mine[:700], mine[3_000] = large, 8 * (RANK + 1)
            source = Array(mine)
            target = source if in_place else Array(np.full_like(mine, 9))
            assert comm.allreduce(stream, source, target, dtype, AVG) == SUCCESS
            stream.wait()
            expected = np.where(np.arange(5_000) < 700, large, 0).astype(dtype)
            expected[3_000] = 20
            np.testing.assert_array_equal(target.host, expected)
    comm.destroy()
    print("all well")


main()
