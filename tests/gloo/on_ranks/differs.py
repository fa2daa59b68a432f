"""On each rank: a first sum, of fewer elements on rank 1."""

from __future__ import annotations

from double import RANK, RANKS, allreduce, begin, hook, part

assert hook() is None
begin()
try:
    allreduce(part(RANK, 80_000 - 10_000 * RANK))
except RuntimeError as why:
    print(f"RuntimeError: {why}")
else:
    raise SystemExit(f"{RANKS} different tensors were summed")
