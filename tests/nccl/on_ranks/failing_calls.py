"""On each rank: the k-th call of CUDA or NCCL in a sum fails on rank 1, or on all ranks; for each k
in turn. The words: one, or all; the communicator's first sum, or a later one.

Nobody hangs, and what is taken for a sum is one: else the call says so, or the communicator does.
As programs do then, they abort it; as with NCCL, the output is undefined."""

from __future__ import annotations

import ctypes
import sys
import time

import numpy as np
from contributions import total, values
from gpu_rank import *

COUNT, DENSITY = 40_000, 0.05  # in two batches
LIBRARY.double_fail_call.argtypes = [ctypes.c_long]
LIBRARY.double_failed_call.restype = ctypes.c_char_p
who, which = sys.argv[1:]


def is_sum_or_error(comm: Communicator, stream: Stream, result: int) -> bool:
    """Whether it is a sum, once that is known."""
    end = time.monotonic() + PATIENCE_S
    while True:
        if result != SUCCESS or comm.async_error() != SUCCESS:
            return False
        if LIBRARY.cuStreamQuery(stream.handle) == SUCCESS:
            return comm.async_error() == SUCCESS
        assert time.monotonic() < end, "neither a sum nor an error"
        time.sleep(1e-3)


def sum_with_failing_call(number: int) -> bytes | None:
    """Which call failed here."""
    stream, comm = Stream(), Communicator(f"comm {number}")
    mine = values(COUNT, DENSITY, RANK).astype(np.float32)
    x, y = Array(mine), Array(np.full_like(mine, 7))
    if which == "later":
        assert comm.allreduce(stream, x, y, "float32") == SUCCESS
        stream.wait()
    barrier(f"begin {number}")
    if RANK == 1 or who == "all":
        LIBRARY.double_fail_call(number)
    result = comm.allreduce(stream, x, y, "float32")
    good = is_sum_or_error(comm, stream, result)
    failed = LIBRARY.double_failed_call()
    LIBRARY.double_fail_call(0)
    if not good:
        comm.abort()
        stream.wait()
    expected = total(COUNT, DENSITY, SIZE)
    if good:
        np.testing.assert_array_equal(y.host, expected)
    barrier(f"end {number}")
    if good:
        comm.destroy()
    if failed:
        print(f"{number}: {failed.decode()}: {'left to NCCL' if good else 'an error'}", flush=True)
    return failed


use_device()
number = 1
while True:
    if sum_with_failing_call(number) is None and RANK == 1:
        (FOLDER / "all calls have failed").touch()
    barrier(f"looked {number}")
    if (FOLDER / "all calls have failed").exists():
        break
    number += 1
print(f"all well after {number - 1} calls", flush=True)
