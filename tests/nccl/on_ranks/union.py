"""On each rank: what NCCL is given by sums on the union of the blocks. The word chooses."""

from __future__ import annotations

import os
import sys
import time

import numpy as np
from gpu_rank import *

import omnihvd

BLOCK, F32 = 256, "float32"


def calls(way: str) -> int:
    return int(omnihvd.stats()["ways"][way]["calls"])


def sum_of(comm: Communicator, stream: Stream, blocks: list[int], count: int) -> None:
    """The same blocks on all ranks."""
    mine = np.zeros(count, np.float32)
    for block in blocks:
        mine[block * BLOCK : (block + 1) * BLOCK] = RANK + block % 7
    x = Array(mine)
    assert comm.allreduce(stream, x, x, F32) == SUCCESS
    stream.wait()
    expected = np.zeros(count, np.float32)
    for block in blocks:
        expected[block * BLOCK : (block + 1) * BLOCK] = sum(r + block % 7 for r in range(SIZE))
    np.testing.assert_array_equal(x.host, expected)
    x.free()


def adapts() -> None:
    """Dense sums are NCCL's own after a while; those that become sparse are found."""
    stream, comm, count = Stream(), Communicator("all"), 4 * BLOCK
    looks = []
    for number in range(260):
        before = in_nccl("ncclAllGather")
        sum_of(comm, stream, [0, 1, 2, 3] if number < 110 else [2], count)
        looks.append(in_nccl("ncclAllGather") > before)
    assert all(looks[2:64]), "nobody knew that they are dense"
    dense = looks[66:110]
    assert sum(dense) == 1, "once a look among 32"
    assert all(looks[-20:]), "they have been sparse for long"
    assert calls("original") >= 100 and calls("union") >= 40
    assert omnihvd.stats()["calls"] == 260
    comm.destroy()


def moves_the_union_only() -> None:
    stream, comm = first_sum()[:2]
    count = 400 * BLOCK
    mine = np.zeros(count, np.float32)
    ours = [3 * RANK, 100 + RANK, 399]  # one in common
    for block in ours:
        mine[block * BLOCK] = 1
    for in_place in (True, False):
        before = [LIBRARY.double_nccl_bytes(name) for name in (b"ncclAllReduce", b"ncclAllGather")]
        source = Array(mine)
        target = source if in_place else Array(np.full_like(mine, 9))
        assert comm.allreduce(stream, source, target, F32) == SUCCESS
        stream.wait()
        assert target.host.sum() == 3 * SIZE and target.host[399 * BLOCK] == SIZE
        after = [LIBRARY.double_nccl_bytes(name) for name in (b"ncclAllReduce", b"ncclAllGather")]
        united = 2 * SIZE + 1
        assert after[0] - before[0] == united * BLOCK * 4
        assert after[1] - before[1] == 256  # a bit a block, and a head
    stats = omnihvd.stats()
    assert stats["result_blocks"] == 40 + 2 * united and stats["nonzero_blocks"] == 40 + 2 * 3
    comm.destroy()


def in_parts() -> None:
    """More blocks than there is room for marks of."""
    stream, comm = Stream(), Communicator("all")
    count = 8192 * BLOCK + 1000
    mine = np.zeros(count, np.int8)
    mine[[5, 1_000_000, 8192 * BLOCK, count - 1]] = RANK + 1
    x = Array(mine)
    assert comm.allreduce(stream, x, x, "int8") == SUCCESS
    stream.wait()
    expected = np.zeros(count, np.int8)
    expected[[5, 1_000_000, 8192 * BLOCK, count - 1]] = SIZE * (SIZE + 1) // 2
    np.testing.assert_array_equal(x.host, expected)
    assert omnihvd.stats()["calls"] == 2
    comm.destroy()


def without_memory() -> None:
    stream, comm = Stream(), Communicator("all")
    if RANK == 1:
        os.environ["CUDA_DOUBLE_MOST_DEVICE_BYTES"] = "100000"
    for number in (1, 2):
        x = Array(np.ones(1_000, np.float32))
        assert comm.allreduce(stream, x, x, F32) == SUCCESS
        stream.wait()
        assert (x.host == SIZE).all()
        assert omnihvd.stats()["passed"]["memory"]["calls"] == number
    assert comm.async_error() == SUCCESS
    comm.destroy()


def held() -> None:
    """Rank 0 frees memory, and so waits for its device, which waits for a sum."""
    stream, comm, x = first_sum()
    spare = Array(np.ones(10, np.float32))
    if RANK == 1:
        time.sleep(0.5)
    assert comm.allreduce(stream, x, x, F32) == SUCCESS
    if RANK == 0:
        spare.free()
    comm.failure()
    stream.wait()
    assert np.isnan(x.host).all()
    barrier("held")
    comm.abort()
    print("all well", flush=True)
    os._exit(0)


def late() -> None:
    """Rank 1 does not come to the second sum."""
    stream, comm, x = first_sum()
    if RANK == 0:
        assert comm.allreduce(stream, x, x, F32) == SUCCESS
        assert comm.failure() == REMOTE_ERROR
        stream.wait()
        assert np.isnan(x.host).all()
    barrier("late")
    comm.abort()
    print("all well", flush=True)
    os._exit(0)


use_device()
globals()[sys.argv[1]]()
print("all well")
