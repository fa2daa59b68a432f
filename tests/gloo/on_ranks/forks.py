"""On each rank: a child that is forked off between sums is told that it cannot sum, and its end is
no end of the rank."""

from __future__ import annotations

import atexit
import os

import numpy as np
from double import RANK, RANKS, allreduce, begin, end, hook, part, total


def check() -> None:
    x = part(RANK, 300_000)
    allreduce(x)
    np.testing.assert_array_equal(x, total(RANKS, 300_000))


assert hook() is None
begin()
check()
child = os.fork()
if child == 0:
    try:
        check()
    except RuntimeError as why:
        assert "forked off" in str(why), why
        atexit._run_exitfuncs()
        os._exit(5)
    os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
check()
end()
print("all well")
