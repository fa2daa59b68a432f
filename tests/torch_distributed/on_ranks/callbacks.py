"""On each rank: callbacks of a sum that ask for other sums, and wait for them. Three ways to wait;
sums that were asked for before come first; a callback's callback waits, too."""

from __future__ import annotations

import itertools
from typing import Any

import torch
import torch.distributed as dist
from contributions import part, total
from torch.distributed.distributed_c10d import _get_default_store

import omnihvd.torch

dist.init_process_group("omnihvd")
rank, size = dist.get_rank(), dist.get_world_size()
everyone = list(range(size))
COUNT = 100_000


def wait_by_itself(tensor: torch.Tensor) -> None:
    dist.all_reduce(tensor)


def wait_for_work(tensor: torch.Tensor) -> None:
    dist.all_reduce(tensor, async_op=True).wait()


def wait_for_future(tensor: torch.Tensor) -> None:
    dist.all_reduce(tensor, async_op=True).get_future().wait()


store = _get_default_store()
turns = itertools.product((wait_by_itself, wait_for_work, wait_for_future), everyone)
for number, (wait, early) in enumerate(turns):
    first, behind, inner, innermost = (part(rank + i, COUNT) for i in range(4))
    if rank != early:  # that rank's callback is in the group's thread
        store.wait([f"attached {number}"])

    def after_inner(_: Any) -> None:
        wait(innermost)  # noqa: B023

    def after_first(_: Any) -> None:
        work = dist.all_reduce(inner, async_op=True)  # noqa: B023
        work.get_future().then(after_inner).wait()

    works = [dist.all_reduce(tensor, async_op=True) for tensor in (first, behind)]
    ended = works[0].get_future().then(after_first)
    if rank == early:
        store.set(f"attached {number}", "")
    ended.wait()
    works[1].wait()
    for i, tensor in enumerate((first, behind, inner, innermost)):
        assert torch.equal(tensor, total([r + i for r in everyone], COUNT)), i
calls = sum(way["calls"] for way in omnihvd.stats()["ways"].values())
assert calls == 4 * number + 4, calls
dist.destroy_process_group()
print("all well")
