"""One rank of a test that hands on what the ranks exchange: python over_pipes.py RANK SIZE SUMS.

Prints what it says in each allgather, in hexadecimal, and reads what all have said. After as many
sums prints how long they took, in seconds, and waits to be told to end.
"""

from __future__ import annotations

import sys
import time

import numpy as np
from groups import blocks_of, session, sum_of

COUNT = 100_003


def allgather(mine: bytes) -> list[bytes]:
    print(mine.hex(), flush=True)
    return [bytes.fromhex(word) for word in input().split(",")]


def main() -> None:
    rank, size, sums = map(int, sys.argv[1:])
    group = session.Engine(session.settings_from_environment()).join(rank, size, allgather)
    expected = sum_of(size, COUNT, 0.5)
    start = time.monotonic()
    for _ in range(sums):
        x = blocks_of(rank, COUNT, 0.5)
        group.allreduce(x, x)
        np.testing.assert_array_equal(x, expected)
    print(time.monotonic() - start, flush=True)
    input()


if __name__ == "__main__":
    main()
