"""On each rank: what NCCL is given by sums on the union of the blocks. The word chooses."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable

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


def capacity_of(comm: Communicator, stream: Stream, blocks: list[int], count: int) -> int:
    """How many blocks NCCL sums in one more sum of such."""

    def given() -> int:
        names = [f"ncclAllReduce of {SIZE}", "ncclReduceScatter"]  # on one level; on two
        return sum(int(LIBRARY.double_nccl_bytes(name.encode())) for name in names)

    before = given()
    sum_of(comm, stream, blocks, count)
    return (given() - before) // (4 * BLOCK)


def until(wanted: Callable[[int], bool], comm, stream, blocks, count) -> int:
    """Sums until NCCL sums as many blocks as is wanted. All ranks see it at the same call."""
    for _ in range(300):
        if wanted(found := capacity_of(comm, stream, blocks, count)):
            return found
    raise AssertionError(f"still {found} blocks")


def adapts() -> None:
    """The capacity follows the union, and dense sums become NCCL's own."""
    (stream, comm, _), count = first_sum(), 1000 * BLOCK
    sparse, dense = [3, 500, 999], list(range(1000))
    assert capacity_of(comm, stream, sparse, count) == 1000, "nothing is known yet"
    assert until(lambda n: n < 500, comm, stream, sparse, count) == 64
    assert until(lambda n: n > 64, comm, stream, list(range(0, 900, 2)), count) < 700
    before = calls("original")
    assert until(lambda n: n == 1000, comm, stream, dense, count)
    sum_of(comm, stream, dense, count)
    assert calls("original") > before and in_nccl("marks") > 10
    comm.destroy()


def auto() -> None:
    """By the times of the doubles' clock: sparse sums move to unions, dense ones stay NCCL's; and a
    sum that becomes dense is NCCL's again."""
    stream, comm = Stream(), Communicator("all")
    count, blocks = 1000 * BLOCK, list(range(5, 1000, 100))
    assert until(lambda n: n < 500, comm, stream, blocks, count) == 64
    dense = 300 * BLOCK
    for _ in range(90):
        assert capacity_of(comm, stream, list(range(300)), dense) == 300
    before = in_nccl("marks")
    assert until(lambda n: n == 1000, comm, stream, list(range(1000)), count)
    sum_of(comm, stream, list(range(1000)), count)
    looks = in_nccl("marks") - before
    assert 60 < looks < 68, "the calls that were planned before"
    assert calls("original") > 150 and calls("union") > 64
    comm.destroy()


def leaves_fast_sums() -> None:
    """Where NCCL takes as long for all sizes, auto leaves sparse sums to it as well."""
    stream, comm, _ = first_sum()
    for _ in range(150):
        assert capacity_of(comm, stream, [5, 105], 1000 * BLOCK) == 1000
    assert calls("union") == 0 and in_nccl("marks") > 4
    comm.destroy()


def far_ahead() -> None:
    """Rank 0 makes as many calls as plans look back before the others have made one; and more calls
    than that in one group."""
    stream, comm, x = first_sum(2000)
    if RANK > 0:
        until_exists("rank 0 has called")
    for _ in range(63):
        assert comm.allreduce(stream, x, x, F32) == SUCCESS
        x.host[:] = 0
    (FOLDER / f"rank {RANK} has called").touch()
    stream.wait()
    many = [Array(np.full(2000, RANK + i, np.float32)) for i in range(200)]
    group_start()
    for one in many:
        assert comm.allreduce(stream, one, one, F32) == SUCCESS
    assert LIBRARY.ncclGroupEnd() in (SUCCESS, IN_PROGRESS)
    assert comm.settled() == SUCCESS
    stream.wait()
    for i, one in enumerate(many):
        assert (one.host == SIZE * i + SIZE * (SIZE - 1) / 2).all()
    comm.destroy()


def waits_for_its_device() -> None:
    """One call more: rank 0 waits, and says for what; it goes on when the others have come."""
    stream, comm, x = first_sum(2000)
    if RANK > 0:
        until_exists("rank 0 has waited")
    elif os.fork() == 0:
        time.sleep(3)
        (FOLDER / "rank 0 has waited").touch()
        os._exit(0)
    for _ in range(70):
        assert comm.allreduce(stream, x, x, F32) == SUCCESS
    stream.wait()
    comm.destroy()


def overflows() -> None:
    """Blocks that do not fit are summed all the same, of all types, by windows."""
    stream, comm, count = Stream(), Communicator("all"), 2500 * BLOCK
    until(lambda n: n == 64, comm, stream, [1, 2499], count)
    assert capacity_of(comm, stream, list(range(100, 2499)), count) == 64
    # Averages are scaled before; in and out of place.
    until(lambda n: n == 64, comm, stream, [1, 2499], count)
    mine = np.full(count, RANK + 1, np.float32)
    x, y = Array(mine), Array(np.zeros_like(mine))
    assert comm.allreduce(stream, x, y, F32, AVG) == SUCCESS
    stream.wait()
    assert (y.host == (SIZE + 1) / 2).all() and (x.host == mine).all()
    comm.destroy()


def moves_the_union_only() -> None:
    stream, comm = first_sum()[:2]
    count = 400 * BLOCK
    mine = np.zeros(count, np.float32)
    ours = [3 * RANK, 100 + RANK, 399]  # one in common
    for block in ours:
        mine[block * BLOCK] = 1
    for in_place in (True, False):
        before = [LIBRARY.double_nccl_bytes(name) for name in (b"ncclAllReduce", b"marks")]
        source = Array(mine)
        target = source if in_place else Array(np.full_like(mine, 9))
        assert comm.allreduce(stream, source, target, F32) == SUCCESS
        stream.wait()
        assert target.host.sum() == 3 * SIZE and target.host[399 * BLOCK] == SIZE
        after = [LIBRARY.double_nccl_bytes(name) for name in (b"ncclAllReduce", b"marks")]
        assert after[0] - before[0] == count * 4  # nothing is known of such: all blocks
        assert after[1] - before[1] == 32 * 13 + 4  # a byte a block, and the trailer
    comm.destroy()
    stats, united = omnihvd.stats(), 2 * SIZE + 1
    assert stats["result_blocks"] == 40 + 2 * united and stats["nonzero_blocks"] == 40 + 2 * 3
    assert stats["blocks"] == 40 + 2 * 400 and stats["calls"] == 3
    barrier("counted")


def counts_all_sums() -> None:
    """The last ones too, whichever rank leaves first."""
    first_sum()[1].destroy()
    stream, before = Stream(), omnihvd.stats()
    for _ in range(8):
        comm = Communicator("all")
        sum_of(comm, stream, [3, 50], 100 * BLOCK)
        time.sleep(0.02)  # the ranks' threads wait for the next call
        sum_of(comm, stream, [3, 50], 100 * BLOCK)
        comm.destroy()
    after = omnihvd.stats()
    assert {k: after[k] - before[k] for k in ("calls", "blocks", "result_blocks")} == {
        "calls": 16,
        "blocks": 1600,
        "result_blocks": 32,
    }


def moves_the_union_on_two_levels() -> None:
    """Three ranks on each of two hosts: NVLink and the network get the union's blocks alone."""
    stream, comm = first_sum()[:2]
    count, hosts, each, block = 400 * BLOCK, 2, SIZE // 2, 4 * BLOCK

    def given() -> list[int]:
        inside, between = f" of {each}", f" of {hosts}"
        names = ["ncclReduceScatter" + inside, "ncclAllReduce" + between]
        names += ["ncclAllGather" + inside, f"marks of {SIZE}", f"ncclAllReduce of {SIZE}"]
        return [int(LIBRARY.double_nccl_bytes(name.encode())) for name in names]

    blocks = [3, 100, 399]
    until(lambda n: n == 64, comm, stream, blocks, count)
    before = given()
    sum_of(comm, stream, blocks, count)
    share = round_up(64 * block, 16 * each) // each
    assert [a - b for a, b in zip(given(), before)] == [each * share, share, share, 32 * 13 + 4, 0]
    comm.destroy()


def round_up(number: int, to: int) -> int:
    return -(-number // to) * to


def left_to_nccl(reason: str) -> None:
    stream, comm = Stream(), Communicator("all")
    for number in (1, 2):
        x = Array(np.ones(1_000, np.float32))
        assert comm.allreduce(stream, x, x, F32) == SUCCESS
        stream.wait()
        assert (x.host == SIZE).all()
        assert omnihvd.stats()["passed"][reason]["calls"] == number
    assert comm.async_error() == SUCCESS
    comm.destroy()


def without_memory() -> None:
    if RANK == 1:
        os.environ["CUDA_DOUBLE_MOST_DEVICE_BYTES"] = "100000"
    left_to_nccl("memory")


def with_wrong_kernels() -> None:
    left_to_nccl("kernels")


def until_exists(name: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while not (FOLDER / name).exists():
        assert time.monotonic() < end, f"{name}: a rank waits for this one"
        time.sleep(1e-3)


def small_capacity(blocks: int = 4000) -> tuple[Stream, Communicator, Array]:
    """The next sum of this array, which is dense, does not fit."""
    stream, comm = Stream(), Communicator("all")
    until(lambda n: n == 64, comm, stream, [1, blocks - 1], blocks * BLOCK)
    return stream, comm, Array(np.ones(blocks * BLOCK, np.int32).view(np.float32))


def driver_locks() -> None:
    """Rank 0 frees memory, and so waits for its device with the driver's locks, while sums are
    under way for which rank 1 has yet to come; also one that needs the ranks' threads."""
    stream, comm, x = small_capacity()
    more = Array(np.ones(4000 * BLOCK, np.float32))
    if RANK == 1:
        until_exists("rank 0 waits")
    assert comm.allreduce(stream, x, x, F32) == SUCCESS
    assert comm.allreduce(stream, more, more, F32) == SUCCESS
    if RANK == 0:
        freed = [Array(np.ones(10, np.float32)) for _ in range(2)]
        helper = threading.Thread(target=lambda: (use_device(), freed[0].free()))
        helper.start()
        (FOLDER / "rank 0 waits").touch()
        freed[1].free()
    assert comm.allreduce(stream, more, more, F32) == SUCCESS
    if RANK == 0:
        helper.join()
    stream.wait()
    assert (more.host == SIZE**2).all()
    comm.destroy()


def other_sizes_are_connected() -> None:
    """A rank's first call of another size, type or operation returns before the others have made
    it, whatever algorithm NCCL takes for it."""
    stream, comm, _ = first_sum(1000)
    for dtype, op in ((F32, SUM), (F32, AVG), ("int32", SUM), ("int8", SUM), ("float16", AVG)):
        x = Array(np.ones(400 * BLOCK, dtype))
        if RANK == 1:
            until_exists(f"rank 0's {op} of {dtype} has returned")
        assert comm.allreduce(stream, x, x, dtype, op) == SUCCESS
        if RANK == 0:
            (FOLDER / f"rank 0's {op} of {dtype} has returned").touch()
        stream.wait()
        assert (x.host == (SIZE if op == SUM else 1)).all()
    comm.destroy()


def the_device_has_failed() -> None:
    """As after a kernel's error: every call of CUDA says so, and nothing waits for what is lost."""
    stream, comm, x = first_sum()
    LIBRARY.double_fail_for_good()
    assert comm.allreduce(stream, x, x, F32) != SUCCESS
    LIBRARY.ncclCommDestroy(comm.handle)
    print("all well", flush=True)
    os._exit(0)


def a_rank_dies_in_the_rest() -> None:
    """Integers have no NaN: the ranks that wait are told."""
    stream, comm, x = small_capacity()
    if RANK == SIZE - 1:
        LIBRARY.double_end_in_rest()
    assert comm.allreduce(stream, x, x, F32) in (SUCCESS, REMOTE_ERROR)
    assert comm.failure() == REMOTE_ERROR
    comm.abort()
    stream.wait()
    print("all well", flush=True)
    os._exit(0)


use_device()
globals()[sys.argv[1]]()
print("all well")
