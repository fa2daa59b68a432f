"""On each rank: calls that are left to NCCL, with the same results, and counted with the reason."""

from __future__ import annotations

import contextlib
import sys
import threading
import time

import numpy as np
from gpu_rank import *

import omnihvd
from omnihvd.intercept import nccl

COUNT = 5_000
MINE = np.arange(COUNT) % 50 + RANK
ALL = [np.arange(COUNT) % 50 + rank for rank in range(SIZE)]


def check(
    comm: Communicator,
    stream: Stream,
    expected: np.ndarray,
    dtype: str,
    op: int,
    reason: str | None,
) -> None:
    x = Array(MINE.astype(dtype))
    passed = omnihvd.stats()["passed"].get(reason, {"calls": 0})["calls"]
    calls, made_by_nccl = omnihvd.stats()["calls"], in_nccl()
    assert comm.allreduce(stream, x, x, dtype, op) == SUCCESS
    stream.wait()
    np.testing.assert_array_equal(x.host, expected.astype(dtype))
    if reason is None:
        assert omnihvd.stats()["calls"] == calls + 1
    else:
        stats = omnihvd.stats()
        assert stats["passed"][reason]["calls"] == passed + 1, (reason, stats)
        assert (stats["calls"], in_nccl()) == (calls, made_by_nccl + 1)


def by_arguments() -> None:
    stream, comm = Stream(), Communicator("all")
    total = sum(ALL)
    check(comm, stream, total, "float32", SUM, None)
    check(comm, stream, np.max(ALL, axis=0), "float32", MAX, "op")
    check(comm, stream, np.min(ALL, axis=0), "int64", MIN, "op")
    check(comm, stream, np.prod(ALL, axis=0), "float64", PROD, "op")
    check(comm, stream, total // SIZE, "int32", AVG, "op")
    LIBRARY.double_set_capturing(stream.handle, 1)
    check(comm, stream, total, "float32", SUM, "captured")
    LIBRARY.double_set_capturing(stream.handle, 0)
    check(comm, stream, total, "float32", SUM, None)

    x = Array(MINE.astype(np.float32))
    for wrong in ({"dtype": 999}, {"comm": None}):  # NCCL says what is wrong
        dtype, handle = wrong.get("dtype", 7), wrong.get("comm", comm.handle)
        arguments = (x.address, x.address, COUNT, dtype, SUM, handle, stream.handle)
        assert LIBRARY.ncclAllReduce(*arguments) not in (SUCCESS, 2)
    assert LIBRARY.ncclAllReduce(x.address, x.address, 0, 7, SUM, comm.handle, stream.handle) == 0
    assert {"dtype", "invalid", "empty"} <= set(omnihvd.stats()["passed"])
    comm.destroy()


def by_size() -> None:
    """OMNIHVD_GPU_MIN_BYTES is between the sizes."""
    stream, comm = Stream(), Communicator("all")
    check(comm, stream, sum(ALL), "int8", SUM, "small")
    check(comm, stream, sum(ALL), "float32", SUM, None)
    comm.destroy()


def always(reason: str) -> None:
    """The settings or surroundings of one rank leave all sums to NCCL."""
    stream, comm = Stream(), Communicator("all")
    for _ in range(2):
        check(comm, stream, sum(ALL), "float32", SUM, reason)
    assert comm.async_error() == SUCCESS
    comm.destroy()


def chosen() -> None:
    """Whatever OMNIHVD_GPU says for others."""
    stream, first, second = Stream(), Communicator("one"), Communicator("two")
    with nccl.way("original"):
        check(first, stream, sum(ALL), "float32", SUM, "original")
    for _ in range(2):
        check(first, stream, sum(ALL), "float32", SUM, "original")
        check(second, stream, sum(ALL), "float32", SUM, None)
    for comm in (first, second):
        comm.destroy()


def chosen_by_one() -> None:
    stream, comm = Stream(), Communicator("all")
    x = Array(MINE.astype(np.float32))
    with nccl.way("original") if RANK == 1 else contextlib.nullcontext():
        assert comm.allreduce(stream, x, x, "float32") == REMOTE_ERROR
    comm.destroy()


def off() -> None:
    """Nothing asks for omnihvd: no call waits where NCCL's would not, and the driver has no call
    of ours. A communicator that a rank chooses for is another matter."""
    stream, comm = Stream(), Communicator("all")
    x = Array(np.ones(COUNT, np.float32))
    if RANK > 0:
        end = time.monotonic() + PATIENCE_S
        while not (FOLDER / "rank 0 has gone on").exists():
            assert time.monotonic() < end, "rank 0 waits for us"
            time.sleep(1e-3)
    before = LIBRARY.double_driver_calls()
    group_start()
    assert comm.allreduce(stream, x, x, "float32") == SUCCESS
    assert LIBRARY.ncclGroupEnd() == SUCCESS
    assert LIBRARY.double_driver_calls() == before
    (FOLDER / f"rank {RANK} has gone on").touch()
    stream.wait()
    assert (x.host == SIZE).all() and in_nccl() == 1 and in_nccl("marks") == 0
    assert omnihvd.stats()["passed"]["original"]["calls"] == 1
    other = Communicator("other")
    with nccl.way("union"):
        assert other.allreduce(stream, x, x, "float32") == SUCCESS
    stream.wait()
    assert (x.host == SIZE**2).all() and in_nccl("marks") > 0
    for communicator in (comm, other):
        communicator.destroy()


def simulated() -> None:
    """Nothing happens; what comes after it does."""
    stream, comm = Stream(), Communicator("all")
    check(comm, stream, sum(ALL), "float32", SUM, None)
    for nested in (False, True):
        x = Array(MINE.astype(np.float32))
        group_start()
        if nested:
            group_start()
        assert comm.allreduce(stream, x, x, "float32") == SUCCESS
        if nested:
            assert LIBRARY.ncclGroupEnd() == SUCCESS
        assert LIBRARY.ncclGroupSimulateEnd(None) == SUCCESS
        stream.wait()
        np.testing.assert_array_equal(x.host, MINE)
        check(comm, stream, sum(ALL), "float32", SUM, None)
    assert omnihvd.stats()["passed"]["simulated"]["calls"] == 2
    comm.destroy()


def one_rank() -> None:
    stream, comm = Stream(), Communicator(f"alone{RANK}", 0, 1)
    check(comm, stream, MINE, "float32", SUM, "one rank")
    comm.destroy()


def ranks_in_a_process() -> None:
    """Two threads of each process are two ranks."""
    stats_before = omnihvd.stats()["calls"]
    failures = []

    def rank(number: int) -> None:
        try:
            use_device(number % 2)
            stream, comm = Stream(), Communicator("threads", number, 2 * SIZE)
            for _ in range(2):
                x = Array(np.full(COUNT, number + 1, np.float32))
                assert comm.allreduce(stream, x, x, "float32") == SUCCESS
                stream.wait()
                assert (x.host == sum(range(1, 2 * SIZE + 1))).all()
            comm.destroy()
        except BaseException as failure:
            failures.append(failure)
            raise

    threads = [threading.Thread(target=rank, args=(2 * RANK + i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not failures
    stats = omnihvd.stats()
    assert stats["calls"] == stats_before
    assert stats["passed"]["several ranks in a process"]["calls"] == 4


use_device()
globals()[sys.argv[1]](*sys.argv[2:])
print("all well")
