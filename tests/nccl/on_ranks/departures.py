"""On each rank: one leaves or fails in the middle of a sum, at an unhappy moment; nobody takes a
wrong sum for a right one, or waits for ever. The word chooses."""

from __future__ import annotations

import os
import sys
import time

RANK, SCENARIO = int(os.environ["RANK"]), sys.argv[1]
if SCENARIO == "other_block_sizes" and RANK in {int(rank) for rank in sys.argv[2:]}:
    os.environ["OMNIHVD_BLOCK_SIZE"] = "32"
if SCENARIO == "one_group_fails":
    os.environ["OMNIHVD_TIMEOUT"] = "2"

import numpy as np  # noqa: E402
from gpu_rank import *  # noqa: E402

import omnihvd  # noqa: E402

F32 = "float32"


def learns(comm: Communicator, stream: Stream, x: Array) -> None:
    """The sum fails here, too, in time, and cannot be taken for one."""
    end = time.monotonic() + PATIENCE_S
    while comm.async_error() == SUCCESS and time.monotonic() < end:
        done = LIBRARY.cuStreamQuery(stream.handle) == SUCCESS
        assert not done or comm.async_error() != SUCCESS, f"a sum without a rank: {x.host}"
        time.sleep(1e-3)
    assert comm.async_error() == REMOTE_ERROR, "waits for a rank that has left"
    comm.abort()
    stream.wait()
    # Where a host's GPUs reduce first, this rank's part; NCCL leaves the others as they are.
    assert np.isnan(x.host).any()


def abort_with_more_queued() -> None:
    """What rank 0 has queued behind the first sum must not be sent as that."""
    stream, comm = first_sum(200_000)[:2]
    x = Array(np.ones(200_000, np.float32))
    if RANK == 0:
        more = Array(np.full(200_000, 1000, np.float32))
        assert comm.allreduce(stream, x, x, F32) == SUCCESS
        assert comm.allreduce(stream, more, more, F32) == SUCCESS
        time.sleep(1)
        comm.abort()
        stream.wait()
        barrier("aborted")
    else:
        time.sleep(2)
        if comm.allreduce(stream, x, x, F32) == SUCCESS:
            learns(comm, stream, x)
        barrier("aborted")


def abort_in_the_middle() -> None:
    """Rank 0, which has only zeros, has got some of the results, and gives out no more."""
    stream, comm = first_sum(200_000)[:2]
    x = Array(np.full(200_000, 0 if RANK == 0 else 1, np.float32))
    before = omnihvd.stats()["messages_sent"]
    assert comm.allreduce(stream, x, x, F32) == SUCCESS
    if RANK == 0:
        end = time.monotonic() + PATIENCE_S
        while omnihvd.stats()["messages_sent"] < before + 20:
            assert time.monotonic() < end
        comm.abort()
    else:
        learns(comm, stream, x)
    barrier("aborted")


def a_part_of_the_engine_fails() -> None:
    """With two engine threads, one of which notices the time-out first, and a second sum queued."""
    stream, comm = first_sum()[:2]
    tensors = [Array(np.ones(1000, np.float32)) for _ in range(2)]
    if RANK == 0:
        for x in tensors:
            assert comm.allreduce(stream, x, x, F32) == SUCCESS
        stream.wait()  # by itself
        assert comm.async_error() == REMOTE_ERROR
        assert all(np.isnan(x.host).all() for x in tensors)
    barrier("failed")


def one_group_fails() -> None:
    """Who waits for rank 3 runs out of time; all others learn of it."""
    stream, comm = first_sum(50_000)[:2]
    tensors = [Array(np.ones(50_000, np.float32)) for _ in range(2)]
    if RANK == 3:
        time.sleep(4)
    for x in tensors:
        comm.allreduce(stream, x, x, F32)
    learns(comm, stream, tensors[0])
    barrier("failed")


def other_block_sizes() -> None:
    stream, comm = Stream(), Communicator("all")
    x = Array(np.ones(100_000, np.float32))
    assert comm.allreduce(stream, x, x, F32) == SUCCESS
    stream.wait()
    assert (x.host == 4).all()
    barrier("summed")


use_device(RANK % 2)
globals()[SCENARIO]()
print("all well", flush=True)
os._exit(0)
