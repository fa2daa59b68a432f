"""On each rank: sums and averages of all types, of sizes around block borders."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch_rank import DEVICE, DTYPES, HOOKED, SIZE, begin, calls, check, end, mine, passed, total

COUNTS = (1, 31, 255, 256, 257, 2049, 8191, 8192, 8193, 300_001)
DENSITIES = (0.0, 0.02, 0.4, 1.0)


def main() -> None:
    begin()
    few = "few" in sys.argv  # under a tool that makes everything slow
    taken = 0
    for i, dtype in enumerate(DTYPES[2:5] if few else DTYPES):
        for j, count in enumerate(COUNTS[::3] if few else COUNTS):
            density = DENSITIES[(i + j) % 4]
            average = dtype.is_floating_point and (i + j) % 3 == 0  # by 2 or 4: exact
            op = dist.ReduceOp.AVG if average else dist.ReduceOp.SUM
            # Behind an address that is aligned to its elements only, between what must stay.
            shift = j % 4
            buffer = torch.full((count + 8,), 77, dtype=dtype, device=DEVICE)
            x = buffer[shift : shift + count]
            x.copy_(mine(dtype, count, density))
            dist.all_reduce(x, op=op)
            expected = total(torch.float64, count, density) / (SIZE if average else 1)
            what = f"{dtype}, {count} elements, density {density}, {op}"
            check(x, expected.to(dtype), what)
            assert (buffer[:shift] == 77).all() and (buffer[shift + count :] == 77).all(), what
            taken += 1
    assert calls() == (taken if HOOKED else 0), (calls(), taken)
    assert passed("op") == passed("dtype") == 0
    end()


main()
