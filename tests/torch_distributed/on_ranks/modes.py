"""On each rank: sums in modes of the calling thread: inference, another default device.
OMNIHVD_ENABLE=0: Gloo's own."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
from contributions import part, total
from torch.distributed import ReduceOp

import omnihvd.torch

ours = os.environ.get("OMNIHVD_ENABLE") != "0"
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
everyone = list(range(size))
COUNT = 90_000 * size  # reduce-scatters divide it
whole, average = total(everyone, COUNT), total(everyone, COUNT) / size
scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
part_on_cpu = part(rank, COUNT)


def ended(work: Any, waits: bool) -> None:
    assert (work is None) == waits
    if work:
        work.wait()


def check(waits: bool) -> None:
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32):
        tensor = part(rank, COUNT, dtype)
        ended(dist.all_reduce(tensor, async_op=not waits), waits)
        assert torch.equal(tensor, total(everyone, COUNT, dtype)), dtype

    tensor = part(rank, COUNT)
    ended(dist.all_reduce(tensor, ReduceOp.AVG, async_op=not waits), waits)
    torch.testing.assert_close(tensor, average)

    tensor = part(rank, COUNT).view(300, -1).t()
    version = None if tensor.is_inference() else tensor._version
    ended(dist.all_reduce(tensor, async_op=not waits), waits)
    assert version is None or tensor._version == version
    if ours:  # Gloo sums wrongly what is not contiguous
        assert torch.equal(tensor, whole.view(300, -1).t())

    pair = [part(rank, COUNT), part(rank, 7)]
    ended(dist.all_reduce_coalesced(pair, async_op=not waits), waits)
    assert torch.equal(pair[0], whole) and torch.equal(pair[1], total(everyone, 7))

    own = slice(rank * COUNT // size, (rank + 1) * COUNT // size)
    for op, expected in ((ReduceOp.SUM, whole), (ReduceOp.AVG, average)):
        share, given = torch.empty(COUNT // size), part(rank, COUNT)
        ended(scatter(share, given, op, async_op=not waits), waits)
        torch.testing.assert_close(share, expected[own])

    if ours:  # Gloo refuses the shape
        share = torch.empty(COUNT // size // 100, 100).t()
        ended(scatter(share, part(rank, COUNT), async_op=not waits), waits)
        assert torch.equal(share, whole[own].view(100, -1))

    tensor = torch.sparse_coo_tensor([[rank, 900]], torch.ones(2, 128), (1000, 128))
    ended(dist.all_reduce(tensor, async_op=not waits), waits)
    dense = tensor.to_dense()
    assert dense[900].eq(size).all() and dense[:size].eq(1).all() and dense.sum() == size * 256


for waits in (True, False):
    # Before the first sum, for which ranks make connections. c10d's functions leave such modes.
    options = dist.AllreduceOptions()
    options.asyncOp = not waits
    sparse = torch.sparse_coo_tensor([[rank]], torch.ones(1, 128), (1000, 128))
    with torch.device("meta"):
        for tensor in (dense := part_on_cpu.clone(), sparse):
            dist.group.WORLD.allreduce([tensor], options).wait()
    assert torch.equal(dense, whole) and sparse.to_dense()[:size].eq(1).all()
    check(waits)
    with torch.inference_mode():
        check(waits)
    # A sum behind another one is another thread's, which knows nothing of the caller's modes.
    with torch.inference_mode():
        before = dist.all_reduce(part(rank, COUNT), async_op=True)
        dist.all_reduce(tensor := part(rank, COUNT), ReduceOp.AVG)
        before.wait()
    torch.testing.assert_close(tensor, average)
    # Tensors of inference mode outlive it, and those from before it are summed in it.
    assert tensor.is_inference()
    ended(dist.all_reduce(tensor, async_op=not waits), waits)
    torch.testing.assert_close(tensor, average * size)
    tensor = part(rank, COUNT)
    with torch.inference_mode():
        ended(dist.all_reduce(tensor, ReduceOp.AVG, async_op=not waits), waits)
    torch.testing.assert_close(tensor, average)
if ours:
    figures = omnihvd.stats()
    assert figures["calls"] > 50 and figures["failures"] == 0, figures
dist.destroy_process_group()
print("all well")
