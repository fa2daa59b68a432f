"""On each rank: sums on more streams than the hardware has queues. The word chooses."""

from __future__ import annotations

import os
import sys
import time

import numpy as np
from gpu_rank import *

COUNT, FILLED = 5_000, 300


def tensor() -> Array:
    values = np.zeros(COUNT, np.float32)
    values[:FILLED] = 1
    return Array(values)


def is_all(x: Array, number: int) -> bool:
    return bool((x.host[:FILLED] == number).all() and (x.host[FILLED:] == 0).all())


def two_communicators(other_order: bool) -> None:
    comms = [Communicator(name) for name in "ab"]
    streams = [[Stream() for _ in range(6)] for _ in comms]
    tensors = [[tensor() for _ in range(6)] for _ in comms]
    for comm, stream, x in zip(comms, streams, tensors):
        assert comm.allreduce(stream[0], x[0], x[0], "float32") == SUCCESS
    barrier("all are connected")
    for i in (0, 1):
        j = i ^ (RANK if other_order else 0)
        for stream, x in zip(streams[j], tensors[j]):
            assert comms[j].allreduce(stream, x, x, "float32") == SUCCESS
    for row, xs in zip(streams, tensors):
        for i, (stream, x) in enumerate(zip(row, xs)):
            stream.wait()
            assert is_all(x, SIZE**2 if i == 0 else SIZE)
    for comm in comms:
        comm.destroy()


def in_one_order() -> None:
    two_communicators(other_order=False)


def in_different_orders() -> None:
    two_communicators(other_order=True)


def fails(sums_before: int) -> None:
    """Rank 0 puts sums, and something behind each, on streams in all queues, in which then nothing
    else gets on. It has begun so many of them before."""
    # Streams of the shim's come after them, and have other queues than the first of them.
    comm, streams = Communicator("all"), [Stream() for _ in range(11)]
    behind, x, tensors = tensor(), tensor(), [tensor() for _ in streams]
    assert comm.allreduce(streams[0], x, x, "float32") == SUCCESS
    streams[0].wait()
    assert is_all(x, SIZE)
    if RANK > 0:
        end = time.monotonic() + PATIENCE_S
        while not (FOLDER / "all are queued").exists():
            assert time.monotonic() < end
            time.sleep(1e-3)
        time.sleep(1)  # rank 0, which knows why, is to run out of patience first
    for i, (stream, x) in enumerate(zip(streams, tensors)):
        assert comm.allreduce(stream, x, x, "float32") in (SUCCESS, REMOTE_ERROR)
        driver("cuMemsetD8Async", behind.address, 0, 1, stream.handle)
        if RANK == 0 and i < sums_before:
            time.sleep(0.5)
    if RANK == 0:
        (FOLDER / "all are queued").touch()
    assert comm.failure() == REMOTE_ERROR
    barrier("failed")
    comm.abort()
    for stream in streams:  # what they leave is nothing to go by: ours may have come behind them
        stream.wait()
    print("all well", flush=True)
    os._exit(0)


def before_a_sum() -> None:
    fails(0)


def in_a_sum() -> None:
    fails(1)


use_device()
globals()[sys.argv[1]]()
print("all well")
