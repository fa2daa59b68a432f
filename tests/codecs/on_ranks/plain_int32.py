"""On each rank: sums of int32, before and after the first tensor under a codec.

Prints how many exchanges omnihvd made over MPI for each ten sums.
"""

from __future__ import annotations

import ctypes

import horovod.torch as hvd
import torch

from omnihvd import OmniReduce

exchanges = ctypes.c_int.in_dll(ctypes.CDLL(None), "exchanges")


def ten_sums(count: int) -> int:
    before = exchanges.value
    for i in range(10):
        x = torch.arange(count, dtype=torch.int32) * (hvd.rank() + 1) + i
        total = hvd.allreduce(x, op=hvd.Sum, name=f"{count}.{i}")
        ranks = hvd.size()
        assert total.equal(
            torch.arange(count, dtype=torch.int32) * (ranks * (ranks + 1) // 2) + ranks * i
        )
    return exchanges.value - before


hvd.init()
ten_sums(1000)  # the ranks meet
print("before a codec:", ten_sums(1000), flush=True)
ten_sums(100_000)  # larger than OMNIHVD_MIN_BYTES: the algorithm is chosen
x = torch.full((1000,), float(hvd.rank() + 1))
mean = hvd.allreduce(x, compression=OmniReduce.natural(), name="coded")
assert 0.5 * (hvd.size() + 1) / 2 < float(mean.mean()) < 2 * (hvd.size() + 1) / 2
print("after one:", ten_sums(1000) > 0, flush=True)
