"""On each rank: a library that is not as known keeps its own sums, and says why."""

from __future__ import annotations

import sys

import numpy as np
from double import RANK, RANKS, allreduce, begin, hook, part, total

import omnihvd

why, reason = sys.argv[5:7]
assert why in (hook() or ""), hook()
begin()
for _ in range(2):
    x = part(RANK, 300_000)
    allreduce(x)
    assert np.array_equal(x, total(RANKS, 300_000))
stats = omnihvd.stats()
assert stats["calls"] == 0 and reason in (*stats["passed"], ""), stats
print("all well")
