"""On each rank: order on streams, several communicators, and that no caller waits for the network.
The words given choose, one after the other."""

from __future__ import annotations

import sys
import time

import numpy as np
from contributions import total, values
from gpu_rank import *

import omnihvd

COUNT = 20_011
F32 = "float32"


def communicator(name: str, rank: int = RANK) -> Communicator:
    return Communicator(f"{name} of {scenario}", rank)


def tensor(seed: int, density: float = 0.2) -> Array:
    return Array(to_dtype(values(COUNT, density, RANK, seed), F32))


def back_to_back() -> None:
    """Many sums without waiting; each finds what the one before it on the stream has left."""
    stream, comm = Stream(), communicator("all")
    chain = tensor(0)
    others = [tensor(seed) for seed in range(1, 9)]
    for other in others:
        assert comm.allreduce(stream, chain, chain, F32) == SUCCESS
        assert comm.allreduce(stream, other, other, F32) == SUCCESS
    stream.wait()
    # The first sums the ranks' own, each further one what is the same on all.
    expected = total(COUNT, 0.2, SIZE) * float(SIZE) ** (len(others) - 1)
    np.testing.assert_array_equal(chain.host, expected.astype(np.float32))
    for seed, other in enumerate(others, 1):
        np.testing.assert_array_equal(other.host, total(COUNT, 0.2, SIZE, seed))
    comm.destroy()


def several_streams() -> None:
    """One communicator on six streams, out of place."""
    streams, comm = [Stream() for _ in range(6)], communicator("all")
    sources = [tensor(seed) for seed in range(24)]
    targets = [Array(np.full(COUNT, 5, np.float32)) for _ in sources]
    for i, (source, target) in enumerate(zip(sources, targets)):
        assert comm.allreduce(streams[i % 6], source, target, F32) == SUCCESS
    for stream in streams:
        stream.wait()
    for seed, target in enumerate(targets):
        np.testing.assert_array_equal(target.host, total(COUNT, 0.2, SIZE, seed))
    comm.destroy()


def several_communicators() -> None:
    """All ranks', and the ranks' in another order; each on its own stream, at once."""
    first, second = communicator("one"), communicator("two", rank=SIZE - 1 - RANK)
    streams = [Stream(), Stream()]
    tensors = [tensor(seed) for seed in range(12)]
    for i, x in enumerate(tensors):
        comm, stream = [(first, streams[0]), (second, streams[1])][i % 2]
        assert comm.allreduce(stream, x, x, F32) == SUCCESS
    for stream in streams:
        stream.wait()
    for seed, x in enumerate(tensors):
        np.testing.assert_array_equal(x.host, total(COUNT, 0.2, SIZE, seed))
    first.destroy()
    second.destroy()


def growing() -> None:
    """Tensors of growing size, with earlier ones still under way."""
    stream, comm = Stream(), communicator("all")
    arrays = []
    for seed, count in enumerate((100, 5_000, 30_000, 200, 60_000)):
        arrays.append(Array(to_dtype(values(count, 0.5, RANK, seed), F32)))
        assert comm.allreduce(stream, arrays[-1], arrays[-1], F32) == SUCCESS
    stream.wait()
    for seed, x in enumerate(arrays):
        np.testing.assert_array_equal(x.host, total(len(x.host), 0.5, SIZE, seed))
    comm.destroy()


def caller_never_waits() -> None:
    """Rank 0 has queued three sums, and gone on, before another rank has called."""
    stream, comm = Stream(), communicator("all")
    first = tensor(0)
    assert comm.allreduce(stream, first, first, F32) == SUCCESS  # here the ranks meet
    stream.wait()
    tensors = [tensor(seed) for seed in range(1, 4)]
    if RANK > 0:
        end = time.monotonic() + PATIENCE_S
        while not (FOLDER / "rank 0 has gone on").exists():
            assert time.monotonic() < end, "rank 0 waits for us"
            time.sleep(1e-3)
    for x in tensors:
        assert comm.allreduce(stream, x, x, F32) == SUCCESS
    if RANK == 0:
        assert LIBRARY.cuStreamQuery(stream.handle) != SUCCESS, "done without the others"
        (FOLDER / "rank 0 has gone on").touch()
    stream.wait()
    for seed, x in enumerate(tensors, 1):
        np.testing.assert_array_equal(x.host, total(COUNT, 0.2, SIZE, seed))
    comm.destroy()


def left_alone() -> None:
    """The ranks sleep in between; nothing of the shim's is at work meanwhile."""
    stream, comm = Stream(), communicator("all")
    x = tensor(0)
    assert comm.allreduce(stream, x, x, F32) == SUCCESS
    stream.wait()
    time.sleep(0.1)
    before = time.process_time()
    time.sleep(1)
    assert time.process_time() - before < 0.2, "busy when idle"
    barrier("awake")
    comm.destroy()


use_device()
for scenario in sys.argv[1:]:
    before = omnihvd.stats()["calls"]
    globals()[scenario]()
    assert omnihvd.stats()["calls"] > before
    barrier(f"end of {scenario}")
print("all well")
