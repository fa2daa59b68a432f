"""On each rank, with the settings as shipped: small sums between large ones, of all ranks and of
process sets at once."""

from __future__ import annotations

import horovod.torch as hvd
import torch

import omnihvd
from omnihvd import OmniReduce

ROUNDS = 60


def check(name: str, process_set: hvd.ProcessSet, number: int) -> None:
    """Each value tells rank, index and round."""
    count = (1, 63, 4096, 32_768, 40_001)[number % 5]
    dtype = (torch.float32, torch.int32, torch.int64)[number % 3]
    ranks = process_set.ranks
    index = torch.arange(count)
    x = (index * 8 + hvd.rank() + number).to(dtype)
    y = hvd.allreduce(x, op=hvd.Sum, name=name, process_set=process_set)
    assert torch.equal(y, ((index * 8 + number) * len(ranks) + sum(ranks)).to(dtype)), name


def main() -> None:
    torch.set_num_threads(1)
    hvd.init(process_sets="dynamic")
    sets = [hvd.add_process_set(list(range(first, hvd.size(), 2))) for first in (0, 1)]
    mine = sets[hvd.rank() % 2]
    for number in range(ROUNDS):
        check(f"all {number}", hvd.global_process_set, number)
        check(f"set {hvd.rank() % 2} {number}", mine, number + 1)
    # A codec's tensor among them, which Horovod sees as int32.
    x = torch.full((3000,), 0.5)
    y = hvd.allreduce(x, name="coded", compression=OmniReduce.natural())
    assert torch.all((y - 0.5).abs() < 0.3)
    check("after", hvd.global_process_set, 1)
    check("after, int32", hvd.global_process_set, 4)
    hvd.barrier()
    stats = omnihvd.stats()
    assert stats["failures"] == 0 and stats["passed"].get("small", {"calls": 0})["calls"] == 0, (
        stats
    )
    assert stats["ways"]["shared"]["calls"] >= ROUNDS, stats
    print("all well", flush=True)


main()
