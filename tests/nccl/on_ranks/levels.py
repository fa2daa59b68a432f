"""On each rank: hosts with several GPUs. The word says whether they reduce inside first."""

from __future__ import annotations

import os
import sys
import time

import numpy as np
from contributions import total, values
from gpu_rank import *

import omnihvd

F32 = "float32"


def sums(comm: Communicator, stream: Stream) -> None:
    arrays = []
    for i, count in enumerate((60_000, 1, 100, 513, 4_096, 70_001, 20_000)):
        mine = to_dtype(values(count, (0.1, 0.6)[i % 2], RANK, i), F32)
        source = Array(mine)
        target = source if i % 2 else Array(np.full(count, 3, np.float32))
        op = AVG if i % 3 == 0 else SUM
        assert comm.allreduce(stream, source, target, F32, op) == SUCCESS
        arrays.append((source, target, op, mine))
    stream.wait()
    for i, (source, target, op, mine) in enumerate(arrays):
        expected = total(len(mine), (0.1, 0.6)[i % 2], SIZE, i) / (SIZE if op == AVG else 1)
        np.testing.assert_allclose(target.host, expected.astype(np.float32), rtol=1e-6)
        assert source is target or np.array_equal(source.host, mine), "the input was modified"


def two_levels(comm: Communicator, stream: Stream) -> None:
    sums(comm, stream)
    assert in_nccl("ncclReduceScatter") > 0 and in_nccl("ncclCommSplit") == 1
    sums(comm, stream)
    assert in_nccl("ncclCommSplit") == 1 and comm.async_error() == SUCCESS
    comm.destroy()


def busy(comm: Communicator, stream: Stream) -> None:
    """What NCCL has got before, on another stream, is under way when the hosts' ranks split."""
    other = Stream()
    for _ in range(3):
        small = Array(np.ones(1_000, np.int32))
        assert comm.allreduce(other, small, small, "int32", MAX) == SUCCESS
    sums(comm, stream)
    assert in_nccl("ncclCommSplit") == 1
    comm.destroy()


def one_level(comm: Communicator, stream: Stream) -> None:
    sums(comm, stream)
    assert in_nccl("ncclReduceScatter") == in_nccl("ncclCommSplit") == 0
    comm.destroy()


def compress_first(comm: Communicator, stream: Stream) -> None:
    one_level(comm, stream)
    # On two levels inside the hosts, and one between them.
    assert omnihvd.stats()["calls"] > 2 * 7


def a_rank_dies(comm: Communicator, stream: Stream) -> None:
    """The others learn of it, or hang in NCCL, as they would without us, until they abort."""
    sums(comm, stream)
    barrier("begun")
    if RANK == SIZE - 1:
        os._exit(0)
    x = Array(np.ones(50_000, np.float32))
    comm.allreduce(stream, x, x, F32)
    end = time.monotonic() + PATIENCE_S
    # Those with the dead rank's local index, and those on its host, know by themselves.
    # Compressed first, those know who need the dead rank's part, which is everybody.
    knows = RANK % 2 == 1 or RANK >= SIZE - 2 or "compress_first" in sys.argv
    while comm.async_error() == SUCCESS and (knows or time.monotonic() < end - PATIENCE_S + 2):
        assert time.monotonic() < end, "the death of a rank was not noticed"
        time.sleep(1e-3)
    assert comm.async_error() in ((REMOTE_ERROR,) if knows else (SUCCESS, REMOTE_ERROR))
    comm.abort()
    stream.wait()
    print("all well", flush=True)
    os._exit(0)


use_device(RANK % 2)
globals()[sys.argv[1]](Communicator("all"), Stream())
assert "calls" in omnihvd.stats()
print("all well")
