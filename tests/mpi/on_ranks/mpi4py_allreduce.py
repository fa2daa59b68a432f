"""Sums with mpi4py on every rank, against their closed form.

Argument: `preloaded`: the shim is there already; `hooked`: mpi4py's library is hooked here, and a
failure must come back without the communicator's error handler being called; `exits`: leaves by
os._exit() after a sum.
"""

from __future__ import annotations

import os
import sys

import numpy as np

if sys.argv[1] == "hooked":
    from omnihvd import engine
    from omnihvd.intercept import mpi_abi

    def hook() -> list[str]:
        return engine.hook.install(
            "/mpi4py/", "MPI_Allreduce", str(mpi_abi.shim()), "omnihvd_MPI_Allreduce"
        )

    assert hook() == [], "hooked before it was loaded"

from mpi4py import MPI

DTYPES = ["float32", "float64", "int8", "uint8", "int32", "int64"]
world = MPI.COMM_WORLD


def values(rank: int, count: int, dtype: str) -> np.ndarray:
    """Small, so that sums are exact; other ones on each rank; every second run of 512 is zero."""
    index = np.arange(count)
    return np.where(index // 512 % 2, 0, index % 5 + 2 * rank + 1).astype(dtype)


def check(comm: MPI.Intracomm, count: int, dtype: str, in_place: bool) -> None:
    mine = values(comm.rank, count, dtype)
    expected = sum(values(rank, count, dtype) for rank in range(comm.size))
    if in_place:
        result = mine
        comm.Allreduce(MPI.IN_PLACE, result)
    else:
        result = np.full_like(mine, 77)
        comm.Allreduce(mine, result)
        np.testing.assert_array_equal(mine, values(comm.rank, count, dtype))
    np.testing.assert_array_equal(result, expected)


def check_all(comm: MPI.Intracomm) -> None:
    for dtype in DTYPES:
        for count in (1, 1000, 70001):
            for in_place in (False, True):
                check(comm, count, dtype, in_place)


def check_failure() -> None:
    os.environ["OMNIHVD_MIN_BYTES"] = "many"
    comm = world.Dup()
    comm.Set_errhandler(MPI.ERRORS_ARE_FATAL)
    for _ in range(2):
        try:
            check(comm, 1000, "float32", True)
        except MPI.Exception as error:
            assert error.Get_error_class() == MPI.ERR_OTHER
        else:
            raise AssertionError("a sum under a bad setting succeeded")


if sys.argv[1] == "hooked":
    assert hook() == [MPI.__spec__.origin]
check_all(world)
if sys.argv[1] == "exits":
    os._exit(0)
# A python function as operation: for float16 in shorts it is tried, and here found to be no sum.
maximum = MPI.Op.Create(
    lambda a, b, _: np.maximum(
        np.frombuffer(a, "i2"), np.frombuffer(b, "i2"), out=np.frombuffer(b, "i2")
    ),
    commute=True,
)
shorts = np.full(100, world.rank, "i2")
world.Allreduce(MPI.IN_PLACE, shorts, op=maximum)
assert (shorts == world.size - 1).all()
halves = world.Split(world.rank % 2, -world.rank)
check_all(halves)
halves.Free()
if sys.argv[1] == "hooked":
    check_failure()
