"""On each rank: sparse tensors in dist.all_reduce, summed as lists of rows (OMNIHVD_WAY=stream) or
as a dense matrix (auto, for ranks of one host)."""

from __future__ import annotations

import math
import sys

import torch
import torch.distributed as dist

import omnihvd.torch
from omnihvd.statistics import taken_bytes

as_lists = sys.argv[1] == "lists"
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
before = omnihvd.Statistics()


def entries(of: int, shape: tuple[int, ...], sparse: int, count: int) -> torch.Tensor:
    """A rank's `count` entries, unsorted; some repeat. Values unique per rank and index."""
    every = math.prod(shape[:sparse])
    places = (torch.arange(count) * 7 + of * 3) * 11 % every
    places[count // 2 :] = places[: count - count // 2]
    indices = torch.stack(torch.unravel_index(places, shape[:sparse]))
    inner = math.prod(shape[sparse:])
    numbers = torch.arange(count * inner).view(count, *shape[sparse:])
    values = (numbers * 5 + of * 31) % 13 + 1
    return torch.sparse_coo_tensor(indices, values, shape, check_invariants=True)


CASES = [
    ((1000, 128), 1, torch.float32),
    ((1000, 3), 1, torch.float64),
    ((40, 50), 2, torch.float32),
    ((30, 20, 4, 8), 2, torch.bfloat16),
    ((700, 64), 1, torch.float16),
    ((700, 64), 1, torch.int64),
    ((4000, 64), 1, torch.uint8),
]
for shape, sparse, dtype in CASES:
    for counts in ([20] * size, [0] * (size - 1) + [6], [0] * size):
        parts = [entries(r, shape, sparse, counts[r]).to(dtype) for r in range(size)]
        tensor = parts[rank].clone()
        dist.all_reduce(tensor)
        assert tensor.is_coalesced() and tensor.dtype == dtype and tensor.shape == shape
        expected = torch.stack([p.to(torch.float64).to_dense() for p in parts]).sum(0)
        assert torch.equal(tensor.to_dense().to(torch.float64), expected), (shape, dtype, counts)
        union = torch.cat([p.coalesce().indices() for p in parts], 1).unique(dim=1)
        assert torch.equal(tensor.indices(), union)
dense = sum(3 * math.prod(shape) * dtype.itemsize for shape, _, dtype in CASES)
assert taken_bytes(before.read()) == dense
made = before.read()["ways"]
assert made["stream"]["calls"] >= 3 * len(CASES) if as_lists else made["stream"]["calls"] == 0, made

# An average; a call that returns at once; a tensor that requires a gradient's, as DDP's do.
tensor = entries(rank, (1000, 128), 1, 20).float()
whole = tensor.to_dense()
gloo = dist.new_group(backend="gloo")
everyone = [torch.empty_like(whole) for _ in range(size)]
dist.all_gather(everyone, whole)
dist.all_reduce(averaged := tensor.clone(), op=dist.ReduceOp.AVG)
torch.testing.assert_close(averaged.to_dense(), torch.stack(everyone).mean(0))
dist.all_reduce(tensor, async_op=True).wait()
assert torch.equal(tensor.to_dense(), torch.stack(everyone).sum(0))

# Rows too wide for a list, and no elements at all.
wide = torch.sparse_coo_tensor([[rank, 5]], torch.ones(2, 70_000), (9, 70_000))
dist.all_reduce(wide)
assert wide.to_dense()[5].eq(size).all() and wide.to_dense()[:size].eq(1).all()

# Ranks that differ: all are told.
if as_lists:
    width = 64 if rank == size - 1 else 128
    tensor = torch.sparse_coo_tensor([[1]], torch.ones(1, width), (1000, width))
    try:
        dist.all_reduce(tensor)
    except RuntimeError as why:
        assert "the ranks disagree" in str(why) and "in blocks of" in str(why), why
    else:
        raise AssertionError("no error")
print("all well", flush=True)
