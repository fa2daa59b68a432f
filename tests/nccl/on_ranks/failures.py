"""On each rank: a rank dies, or the communicator is aborted; nobody hangs. The word chooses."""

from __future__ import annotations

import os
import sys
import threading
import time

import numpy as np
from gpu_rank import *

import omnihvd


def a_rank_dies() -> None:
    stream, comm, x = first_sum()
    if RANK == SIZE - 1:
        os._exit(0)
    assert comm.allreduce(stream, x, x, "float32") == SUCCESS
    end = time.monotonic() + PATIENCE_S
    while comm.async_error() == SUCCESS:
        assert time.monotonic() < end, "the death of a rank was not noticed"
        time.sleep(1e-3)
    assert comm.async_error() == REMOTE_ERROR
    assert comm.allreduce(stream, x, x, "float32") == REMOTE_ERROR
    comm.abort()  # as PyTorch and Horovod do then
    stream.wait()
    assert np.isnan(x.host).all(), "a sum that failed may be taken for one"


def shrink_after_a_death() -> None:
    """The others go on without the dead rank, as PyTorch's shrink_group does."""
    stream, comm, x = first_sum()
    if RANK == SIZE - 1:
        os._exit(0)
    status = comm.allreduce(stream, x, x, "float32")
    assert status in (SUCCESS, REMOTE_ERROR)  # the death may be known by now
    barrier("queued", SIZE - 1)  # a shrunk communicator is none that others can still call on
    smaller = comm.shrunk([SIZE - 1])
    stream.wait()
    assert np.isnan(x.host).all() or status == REMOTE_ERROR
    x.host[:] = RANK + 1
    assert smaller.allreduce(stream, x, x, "float32") == SUCCESS
    stream.wait()
    assert (x.host == SIZE * (SIZE - 1) / 2).all()
    assert comm.async_error() == REMOTE_ERROR and smaller.async_error() == SUCCESS
    comm.destroy()
    smaller.destroy()


def abort_lets_streams_go_on() -> None:
    """The others never call: only abort() can help the stream."""
    stream, comm, x = first_sum()
    if RANK == 0:
        assert comm.allreduce(stream, x, x, "float32") == SUCCESS
        time.sleep(0.3)
        assert comm.async_error() == SUCCESS
        comm.abort()
        stream.wait()
        assert np.isnan(x.host).all()
    else:
        time.sleep(1)
        comm.abort()
    barrier("aborted")
    # The process goes on with a new communicator, as elastic jobs do.
    again = Communicator("again")
    y = Array(np.full(10_000, RANK + 1, np.float32))
    assert again.allreduce(stream, y, y, "float32") == SUCCESS
    stream.wait()
    assert (y.host == SIZE * (SIZE + 1) / 2).all()
    again.destroy()


def abort_during_a_result() -> None:
    """While a result is being written, with another sum queued behind it."""
    stream, comm = first_sum(60_000)[:2]
    x, behind = (Array(np.ones(60_000, np.float32)) for _ in range(2))
    assert comm.allreduce(stream, x, x, "float32") == SUCCESS
    if RANK == 0:
        assert comm.allreduce(stream, behind, behind, "float32") == SUCCESS
        end = time.monotonic() + PATIENCE_S
        while not (x.host[::64] == SIZE).any():
            assert time.monotonic() < end
        comm.abort()
    elif not done_or_failed(stream, comm):
        comm.abort()  # as in NCCL: what waits for others ends when it is aborted
    stream.wait()
    assert (x.host == SIZE).all() or np.isnan(x.host).all(), "a mixture"
    barrier("aborted")


def done_or_failed(stream: Stream, comm: Communicator) -> bool:
    end = time.monotonic() + PATIENCE_S
    while LIBRARY.cuStreamQuery(stream.handle) != SUCCESS:
        if comm.async_error() != SUCCESS:
            return False
        assert time.monotonic() < end, "neither done nor failed"
    return True


def abort_in_calls() -> None:
    """Again and again, whatever the thread that calls NCCL is doing."""
    stream = Stream()
    for ms in (10, 50, 70):
        comm = Communicator(f"after {ms}")
        x = Array(np.ones(60_000, np.float32))
        assert comm.allreduce(stream, x, x, "float32") == SUCCESS
        stream.wait()
        barrier(f"begun {ms}")
        assert comm.allreduce(stream, x, x, "float32") == SUCCESS
        time.sleep(ms / 1000)
        comm.abort()
        stream.wait()


def abort_ends_destroy() -> None:
    """A communicator is destroyed where a sum will never be complete: another thread can abort."""
    stream, comm, x = first_sum()
    if RANK == 0:
        assert comm.allreduce(stream, x, x, "float32") == SUCCESS
        threading.Timer(0.5, comm.abort).start()
        comm.destroy()
        stream.wait()
    barrier("destroyed")


def aborts_in_a_group() -> None:
    """As PyTorch aborts all communicators of a process group; the streams wait in both. To free
    what one had, NCCL waits for the device, and so for the other."""
    comms = [Communicator("one"), Communicator("two")]
    streams = [Stream(), Stream()]
    tensors = [Array(np.ones(10_000, np.float32)) for _ in comms]
    for comm, stream, x in zip(comms, streams, tensors):
        assert comm.allreduce(stream, x, x, "float32") == SUCCESS
        stream.wait()
    barrier("begun")
    if RANK == 0:
        for comm, stream, x in zip(comms, streams, tensors):
            assert comm.allreduce(stream, x, x, "float32") == SUCCESS
        assert LIBRARY.ncclGroupStart() == SUCCESS
        for comm in comms:
            comm.abort()
        assert LIBRARY.ncclGroupEnd() == SUCCESS
    for stream in streams:
        stream.wait()
    barrier("aborted")


def healthy_abort() -> None:
    """All sums are over. As in NCCL, the others do not learn that rank 0 aborts."""
    stream, comm, x = first_sum()
    for _ in range(3):
        assert comm.allreduce(stream, x, x, "float32") == SUCCESS
        stream.wait()
    barrier("over")
    if RANK == 0:
        comm.abort()
    barrier("aborted")
    if RANK > 0:
        time.sleep(0.5)
        assert comm.async_error() == SUCCESS
        comm.destroy()


def a_rank_never_comes() -> None:
    """Not to the first sum of the communicator: the others say so, and give up."""
    stream, comm = Stream(), Communicator("all")
    if RANK < SIZE - 1:
        x = Array(np.ones(10_000, np.float32))
        begin = time.monotonic()
        assert comm.allreduce(stream, x, x, "float32") == REMOTE_ERROR
        assert time.monotonic() - begin < PATIENCE_S
        assert comm.async_error() == REMOTE_ERROR
    barrier("given up")
    comm.abort()


def a_wrong_setting() -> None:
    """On one rank alone; all learn of it, and sum nothing."""
    stream, comm = Stream(), Communicator("all")
    x = Array(np.ones(10_000, np.float32))
    assert comm.allreduce(stream, x, x, "float32") == REMOTE_ERROR
    assert comm.async_error() == REMOTE_ERROR and (x.host == 1).all()
    barrier("refused")
    comm.abort()


use_device()
globals()[sys.argv[1]]()
assert "calls" in omnihvd.stats()
print("all well", flush=True)
os._exit(0)  # a communicator that a rank has left cannot end in peace
