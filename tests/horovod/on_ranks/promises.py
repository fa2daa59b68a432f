"""On each rank, what Horovod promises besides sums: fusion, an optimizer, averages, NaN and
infinity, process sets.

argv: a letter for each rank, the host that it believes to be on.
"""

from __future__ import annotations

import math
import os
import sys

import horovod.torch as hvd
import torch
from closed_form import part, total

import omnihvd
from omnihvd import OmniReduce


def fused() -> None:
    everyone = list(range(hvd.size()))
    tensors = [part(hvd.rank(), 5_000 + i, 0.3, torch.float32) for i in range(20)]
    calls = omnihvd.stats()["calls"]
    results = hvd.grouped_allreduce(tensors, op=hvd.Sum, name="fused")
    assert 1 <= omnihvd.stats()["calls"] - calls < 20, "nothing was fused"
    for i, result in enumerate(results):
        assert torch.equal(result, total(everyone, 5_000 + i, 0.3, torch.float32))


def average_with_compressors() -> None:
    everyone = list(range(hvd.size()))
    x = part(hvd.rank(), 300_000, 0.1, torch.float32)
    expected = total(everyone, 300_000, 0.1, torch.float32) / hvd.size()
    y = hvd.allreduce(x, name="average", compression=OmniReduce)
    torch.testing.assert_close(y, expected)
    y = hvd.allreduce(x, name="half", compression=hvd.Compression.fp16)
    torch.testing.assert_close(y, expected, rtol=2e-3, atol=0)


def special_values() -> None:
    x = torch.zeros(100_000)
    x[700] = math.nan if hvd.rank() == 0 else 0
    x[5000] = math.inf
    y = hvd.allreduce(x, op=hvd.Sum, name="special")
    assert math.isnan(y[700]) and math.isinf(y[5000])
    assert torch.count_nonzero(torch.nan_to_num(y, nan=0, posinf=0)) == 0


def process_sets(even: hvd.ProcessSet, odd: hvd.ProcessSet) -> None:
    """Both sets reduce at the same time, several times."""
    mine = even if hvd.rank() % 2 == 0 else odd
    for repeat in range(5):
        count = 200_000 + repeat * 1000 + hvd.rank() % 2
        x = part(hvd.rank(), count, 0.2, torch.float32)
        y = hvd.allreduce(x, op=hvd.Sum, name=f"set {hvd.rank() % 2} {repeat}", process_set=mine)
        assert torch.equal(y, total(mine.ranks, count, 0.2, torch.float32))


def optimizer() -> None:
    """Weights after steps with sparse and dense parameters equal those of one process."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Embedding(2000, 64), torch.nn.Flatten(), torch.nn.Linear(64 * 4, 1)
    ).double()
    alone = torch.nn.Sequential(
        torch.nn.Embedding(2000, 64), torch.nn.Flatten(), torch.nn.Linear(64 * 4, 1)
    ).double()
    alone.load_state_dict(model.state_dict())
    batches = [torch.randint(0, 2000, (8, 4)) for _ in range(hvd.size() * 3)]
    step = torch.optim.SGD(model.parameters(), lr=0.1)
    step = hvd.DistributedOptimizer(step, model.named_parameters(), compression=OmniReduce)
    for i in range(3):
        step.zero_grad()
        model(batches[i * hvd.size() + hvd.rank()]).pow(2).mean().backward()
        step.step()
    step = torch.optim.SGD(alone.parameters(), lr=0.1)
    for i in range(3):
        step.zero_grad()
        everyone = torch.cat(batches[i * hvd.size() : (i + 1) * hvd.size()])
        alone(everyone).pow(2).mean().backward()
        step.step()
    for ours, theirs in zip(model.parameters(), alone.parameters()):
        torch.testing.assert_close(ours, theirs)


def main() -> None:
    torch.set_num_threads(1)
    rank, ranks = (
        int(os.environ.get(f"OMPI_COMM_WORLD_{what}") or os.environ[f"HOROVOD_{what}"])
        for what in ("RANK", "SIZE")
    )
    if sys.argv[1:]:
        os.environ["OMNIHVD_HOST_ID"] = sys.argv[1][rank]
    even, odd = hvd.ProcessSet([*range(0, ranks, 2)]), hvd.ProcessSet([*range(1, ranks, 2)])
    hvd.init(process_sets=[even, odd])
    fused()
    average_with_compressors()
    special_values()
    optimizer()
    process_sets(even, odd)
    hvd.barrier()  # a rank that ends shuts Horovod down for the other set, too
    stats = omnihvd.stats()
    assert stats["calls"] > 0 and stats["failures"] == 0, stats
    print("all well", flush=True)


main()
