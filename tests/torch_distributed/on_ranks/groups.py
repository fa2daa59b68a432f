"""On each rank: first sums on several process groups at once, and those of DDP models with a group
each. The arguments: how, how many groups, "same" or "another" order on each rank, how often."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from contributions import part, total
from torch.nn.parallel import DistributedDataParallel

how, groups, order, rounds = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
if how != "hooks":
    import omnihvd
TIMEOUT = timedelta(seconds=40)
dist.init_process_group("gloo", timeout=TIMEOUT)
rank, size = dist.get_rank(), dist.get_world_size()
everyone = list(range(size))
COUNT = 70_000  # 280 kB
plain = [dist.new_group(timeout=TIMEOUT) for _ in range(groups * rounds if how == "hooks" else 0)]
import omnihvd.torch  # noqa: E402, which leaves those groups on Gloo


def in_order() -> list[int]:
    """This rank's groups."""
    turn = rank if order == "another" else 0
    return [(i + turn) % groups for i in range(groups)]


def sum_asynchronously(made: Sequence[Any]) -> None:
    tensors = [part(rank + i, COUNT) for i in range(groups)]
    works = [dist.all_reduce(tensors[i], group=made[i], async_op=True) for i in in_order()]
    for work in works:
        work.wait()
    for i, tensor in enumerate(tensors):
        assert torch.equal(tensor, total([r + i for r in everyone], COUNT))


def sum_in_threads(made: Sequence[Any]) -> None:
    tensors = [part(rank + i, COUNT) for i in range(groups)]
    threads = [
        threading.Thread(target=dist.all_reduce, args=(tensors[i],), kwargs={"group": made[i]})
        for i in in_order()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, tensor in enumerate(tensors):
        assert torch.equal(tensor, total([r + i for r in everyone], COUNT))


def train(made: Sequence[Any]) -> None:
    """One loss of several models. Backward meets the last one first that was called."""
    models = [torch.nn.Linear(COUNT // 100, 100, bias=False) for _ in made]
    ddp = [
        DistributedDataParallel(model, process_group=group) for model, group in zip(models, made)
    ]
    if how == "hooks":
        for model, group in zip(ddp, made):
            model.register_comm_hook(group, omnihvd.torch.allreduce_hook)
    # DDP itself needs one order in the second step, before which it makes its buckets anew.
    for turn in (in_order(), range(groups)):
        losses = [ddp[i](torch.full((1, COUNT // 100), 1.0 + rank + i)).sum() for i in turn]
        for model in ddp:
            model.zero_grad()
        torch.stack(losses).sum().backward()
        for i, model in enumerate(models):
            mean = 1 + i + (size - 1) / 2
            torch.testing.assert_close(model.weight.grad, torch.full((100, COUNT // 100), mean))


what = {"async": sum_asynchronously, "threads": sum_in_threads}.get(how, train)
for number in range(rounds):
    mine = plain[number * groups : (number + 1) * groups]
    made = mine or [dist.new_group(timeout=TIMEOUT) for _ in range(groups)]
    dist.barrier()
    what(made)
    for group in made:
        dist.destroy_process_group(group)
assert omnihvd.stats()["passed_share"] == 0 or how != "hooks"
dist.barrier()
dist.destroy_process_group()
print("all well")
