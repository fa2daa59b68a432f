"""On each rank: hosts with several GPUs. The word says whether they reduce inside first."""

from __future__ import annotations

import os
import sys

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


def busy(comm: Communicator, stream: Stream) -> None:
    """Earlier calls of NCCL, on another stream, are under way when the hosts' ranks split."""
    other = Stream()
    for _ in range(3):
        small = Array(np.ones(1_000, np.int32))
        assert comm.allreduce(other, small, small, "int32", MAX) == SUCCESS
    sums(comm, stream)
    assert in_nccl("ncclCommInitRankConfig") == 2
    comm.destroy()


def union_levels(comm: Communicator, stream: Stream) -> None:
    """The union's blocks alone are reduced in the host, and then between hosts."""
    sums(comm, stream)
    assert in_nccl("ncclCommInitRankConfig") == 2
    scattered, on_one = in_nccl("ncclReduceScatter"), in_nccl(f"ncclAllReduce of {SIZE}")
    sums(comm, stream)
    assert in_nccl("ncclReduceScatter") > scattered
    assert in_nccl(f"ncclAllReduce of {SIZE}") == on_one
    assert in_nccl("ncclCommInitRankConfig") == 2 and comm.async_error() == SUCCESS
    comm.destroy()
    assert LIBRARY.double_live_comms() == 0


def union_one_level(comm: Communicator, stream: Stream) -> None:
    sums(comm, stream)
    assert in_nccl("ncclReduceScatter") == 0 and in_nccl("marks") > 7
    comm.destroy()


def no_communicators(comm: Communicator, stream: Stream) -> None:
    """By default none is made: each takes 600 MB of the device."""
    sums(comm, stream)
    assert in_nccl("ncclCommInitRankConfig") == 0 and in_nccl("marks") > 7
    comm.destroy()


def no_communicator_for_hosts(comm: Communicator, stream: Stream) -> None:
    """NCCL fails to make it on one rank: sums are made on one level, and nobody waits."""
    if int(sys.argv[2]) == RANK:
        LIBRARY.double_fail_named(sys.argv[3].encode())
    x = Array(np.ones(5_000, np.float32))
    assert comm.allreduce(stream, x, x, F32) == SUCCESS
    stream.wait()
    assert (x.host == SIZE).all() and in_nccl("ncclReduceScatter") == 0
    barrier("summed")
    print("all well", flush=True)
    os._exit(0)  # NCCL's threads that wait for that rank


use_device(RANK % 2)
globals()[sys.argv[1]](Communicator("all"), Stream())
assert omnihvd.stats()["calls"] >= 7
print("all well")
