"""On each rank: sums of int32, by Horovod alone ("plain"), or before and after a codec's first.

Prints for each ten sums how many sums and exchanges MPI made.
"""

from __future__ import annotations

import ctypes
import sys

import horovod.torch as hvd
import torch

if "plain" not in sys.argv:
    from omnihvd import OmniReduce

sums, exchanges = (ctypes.c_int.in_dll(ctypes.CDLL(None), name) for name in ("sums", "exchanges"))


def ten_sums(count: int) -> tuple[int, int]:
    before = sums.value, exchanges.value
    for i in range(10):
        x = torch.arange(count, dtype=torch.int32) * (hvd.rank() + 1) + i
        total = hvd.allreduce(x, op=hvd.Sum, name=f"{count}.{i}")
        ranks = hvd.size()
        assert total.equal(
            torch.arange(count, dtype=torch.int32) * (ranks * (ranks + 1) // 2) + ranks * i
        )
    return sums.value - before[0], exchanges.value - before[1]


hvd.init()
ten_sums(1000)  # the ranks meet
ten_sums(100_000)  # and choose an algorithm
for count in (1000, 100_000):
    print(f"{4 * count} bytes: {ten_sums(count)}", flush=True)
if "plain" not in sys.argv:
    x = torch.full((1000,), float(hvd.rank() + 1))
    mean = hvd.allreduce(x, compression=OmniReduce.natural(), name="coded")
    assert 0.5 * (hvd.size() + 1) / 2 < float(mean.mean()) < 2 * (hvd.size() + 1) / 2
    print(f"after a codec: {ten_sums(1000)}", flush=True)
