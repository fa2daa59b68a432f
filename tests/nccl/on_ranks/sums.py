"""On each rank: sums and averages of all types, in and out of place, of many sizes."""

from __future__ import annotations

import sys

import numpy as np
from contributions import total, values
from gpu_rank import *

import omnihvd

COUNTS = (1, 31, 32, 255, 256, 257, 2049, 8191, 8192, 8193, 40_001)
DENSITIES = (0.0, 0.02, 0.4, 1.0)


def main() -> None:
    use_device()
    stream, comm = Stream(), Communicator("all")
    taken = 0
    few = "few" in sys.argv
    for i, dtype in enumerate(TYPES):
        for j, count in enumerate(COUNTS[i % 3 :: 3] if few else COUNTS):
            density = DENSITIES[(i + j) % 4]
            for in_place in (True, False):
                average = "float" in dtype and SIZE in (2, 4) and (i + j) % 3 == 0
                mine = to_dtype(values(count, density, RANK), dtype)
                source = Array(mine, misaligned=j % 4)
                target = source if in_place else Array(np.full_like(mine, 77), misaligned=i % 3)
                op = AVG if average else SUM
                assert comm.allreduce(stream, source, target, dtype, op) == SUCCESS
                stream.wait()
                expected = total(count, density, SIZE) / (SIZE if average else 1)
                where = f"{dtype} {count} {density} in place: {in_place}, average: {average}"
                np.testing.assert_array_equal(
                    target.host.view(numpy_type(dtype)), to_dtype(expected, dtype), where
                )
                assert in_place or np.array_equal(source.host, mine), "the input was modified"
                source.free()
                if not in_place:
                    target.free()
                taken += 1
    assert comm.async_error() == SUCCESS
    stats = omnihvd.stats()
    if "left" in sys.argv:
        assert stats["calls"] == 0 and in_nccl() == taken, stats
    elif "levels" not in sys.argv:
        assert stats["calls"] == taken, (stats, taken)
    comm.destroy()
    print("all well")


main()
