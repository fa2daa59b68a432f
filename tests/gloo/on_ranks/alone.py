"""On each rank: rank 1 is not hooked, or absent, and the others say so. argv: ..., which."""

from __future__ import annotations

import sys

from double import RANK, allreduce, begin, hook, part

if RANK != 1:
    assert hook() is None
elif sys.argv[5] == "absent":
    raise SystemExit
begin()
try:
    allreduce(part(RANK, 300_000))
except RuntimeError as why:
    print("failed:", why)
