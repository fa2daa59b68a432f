"""On each rank: calls between ncclGroupStart and ncclGroupEnd."""

from __future__ import annotations

import numpy as np
from contributions import total, values
from gpu_rank import *

import omnihvd

COUNT, F32 = 9_001, "float32"


def tensor(seed: int) -> Array:
    return Array(to_dtype(values(COUNT, 0.3, RANK, seed), F32))


def expected(seed: int) -> np.ndarray:
    return total(COUNT, 0.3, SIZE, seed).astype(np.float32)


def start() -> None:
    assert LIBRARY.ncclGroupStart() == SUCCESS


def end(comms: list[Communicator]) -> None:
    assert LIBRARY.ncclGroupEnd() in (SUCCESS, IN_PROGRESS)
    for comm in comms:
        comm.settled()


def main() -> None:
    use_device()
    one, two = Communicator("one"), Communicator("two", rank=(RANK + 1) % SIZE)
    streams = [Stream(), Stream()]

    # New communicators, in any order, as a rank of each; nested; with what NCCL keeps among them.
    tensors = [tensor(seed) for seed in range(5)]
    largest = Array(np.full(COUNT, RANK, np.int64))
    order = [(one, 0), (two, 1), (one, 2), (two, 3)]
    start()
    start()
    for comm, i in order if RANK % 2 else order[::-1]:
        # Within one communicator the order is the same on all ranks.
        seed = i if RANK % 2 else (i + 2) % 4
        assert comm.allreduce(streams[i % 2], tensors[seed], tensors[seed], F32) == SUCCESS
    assert LIBRARY.ncclGroupEnd() == SUCCESS
    assert omnihvd.stats()["calls"] == 0, "called before the outermost end"
    assert one.allreduce(streams[0], largest, largest, "int64", MAX) == SUCCESS
    assert one.allreduce(streams[0], tensors[4], tensors[4], F32, SUM) == SUCCESS
    end([one, two])
    for stream in streams:
        stream.wait()
    for seed, x in enumerate(tensors):
        np.testing.assert_array_equal(x.host, expected(seed))
    assert (largest.host == SIZE - 1).all()
    assert omnihvd.stats()["calls"] == 5

    # Communicators that know each other by now, on one stream, in opposite orders on the ranks.
    for round_ in range(3):
        tensors = [tensor(10 * round_ + seed) for seed in range(6)]
        start()
        for comm, half in ((one, 0), (two, 3)) if RANK % 2 else ((two, 3), (one, 0)):
            for x in tensors[half : half + 3]:
                assert comm.allreduce(streams[0], x, x, F32) == SUCCESS
        end([one, two])
        start()
        end([])
        streams[0].wait()
        for seed, x in enumerate(tensors):
            np.testing.assert_array_equal(x.host, expected(10 * round_ + seed))
    for comm in (one, two):
        assert comm.async_error() == SUCCESS
        comm.destroy()
    print("all well")


main()
