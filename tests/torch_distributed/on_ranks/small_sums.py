"""On each rank: small sums, which memory of the ranks' host makes, beside all else that a process
group does. Argument: "memory"; "hosts" on two hosts; "full" where rank 0 can write no memory."""

from __future__ import annotations

import os
import resource
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import AllreduceOptions, ReduceOp

import omnihvd.torch

made = sys.argv[1] == "memory"
dist.init_process_group("omnihvd", timeout=timedelta(seconds=30))
rank, size = dist.get_rank(), dist.get_world_size()
if sys.argv[1] == "full" and rank == 0:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 13, resource.RLIM_INFINITY))
MOST = 256 << 10  # bytes of a small sum
LEAST = int(os.environ.get("OMNIHVD_MIN_BYTES") or 1)
PERIODS = {torch.float16: 61, torch.bfloat16: 7}  # for sums that are exact


def part(rank: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """Values unique per rank and index, up to a period for halves; small integers wrap around."""
    return ((torch.arange(count) % PERIODS.get(dtype, count + 1)) * 8 + rank + 1).to(dtype)


def total(size: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    index = torch.arange(count) % PERIODS.get(dtype, count + 1)
    return (index * 8 * size + size * (size + 1) // 2).to(dtype)


def mean(size: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    return total(size, count, dtype) / size


def shared() -> int:
    return int(omnihvd.stats()["ways"]["shared"]["calls"])


HALVES = [torch.float16, torch.bfloat16]
FLOATS = [torch.float32, torch.float64, *HALVES]
INTEGERS = [torch.int8, torch.uint8, torch.int32, torch.int64]
sums = 0
before = shared()
for dtype in FLOATS + INTEGERS:
    width = dtype.itemsize
    for count in (0, 1, 3, 4097, MOST // width - 1, MOST // width):
        for op in [ReduceOp.SUM] + [ReduceOp.AVG] * (dtype in FLOATS):
            tensor = part(rank, count, dtype)
            dist.all_reduce(tensor, op)
            expected = (total if op == ReduceOp.SUM else mean)(size, count, dtype)
            assert torch.equal(tensor, expected), (dtype, count, op)
            sums += tensor.nbytes >= LEAST
assert not made or shared() - before == sums, (shared() - before, sums)

# Another operation is the library's, and a caller may keep the works of sums that are done.
tensor = part(rank, 9, torch.float64)
dist.all_reduce(tensor, ReduceOp.MAX)
assert torch.equal(tensor, part(size - 1, 9, torch.float64))
options = AllreduceOptions()
options.asyncOp = False
kept = []
for i in range(4):
    tensor = part(rank + i, 9, torch.float64)
    kept.append((dist.group.WORLD.allreduce([tensor], options), tensor))
for i, (work, tensor) in enumerate(kept):
    work.wait()
    assert torch.equal(tensor, total(size, 9, torch.float64) + size * i)
    assert work.result()[0] is tensor and work.get_future().wait()[0] is tensor, i

# Small and large in turn, waited for and not, in a list, and by groups of some ranks at once.
some = dist.new_group(list(range(max(2, size - 1))))
own = dist.new_group([rank], use_local_synchronization=True)
for i in range(60):
    count = (5, 70_000, 900, 100_000)[i % 4] + i
    tensors = [part(rank + i + k, count, torch.float64) for k in range(3)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors[:2]]
    dist.all_reduce(tensors[2])
    for k, tensor in enumerate(tensors):
        assert k == 2 or works[k].wait()
        assert torch.equal(tensor, total(size, count, torch.float64) + size * (i + k)), (i, k)
    pair = [part(rank, count, torch.float64), part(rank + 1, 7, torch.float64)]
    dist.all_reduce_coalesced(pair)
    assert torch.equal(pair[0], total(size, count, torch.float64))
    assert torch.equal(pair[1], total(size, 7, torch.float64) + size)
    if rank < max(2, size - 1):
        tensor = part(rank, count, torch.int64)
        dist.all_reduce(tensor, group=some)
        assert torch.equal(tensor, total(max(2, size - 1), count, torch.int64))
    tensor = part(rank, count, torch.int64)
    dist.all_reduce(tensor, group=own)
    assert torch.equal(tensor, part(rank, count, torch.int64))

# The future of a sum that is done, of a tensor in no row, and of another operation.
work = dist.group.WORLD.allreduce([tensor := part(rank, 10, torch.float32)])
assert work.wait() and work.is_completed() and work.is_success()
assert torch.equal(work.get_future().wait()[0], total(size, 10, torch.float32))
tensor = part(rank, 600, torch.float32).view(20, 30).t()
dist.all_reduce(tensor)
assert torch.equal(tensor, total(size, 600, torch.float32).view(20, 30).t())
tensor = part(rank, 10, torch.float32)
dist.all_reduce(tensor, ReduceOp.MAX)
assert torch.equal(tensor, part(size - 1, 10, torch.float32))

# A forked child cannot sum in memory, and its end is no end of the rank.
if made:
    child = os.fork()
    if child == 0:
        try:
            dist.all_reduce(torch.ones(5000))
        except RuntimeError as why:
            os._exit(5 if "forked off" in str(why) else 6)
        os._exit(7)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status == 5, status
tensor = part(rank, 10, torch.float32)
dist.all_reduce(tensor)
assert torch.equal(tensor, total(size, 10, torch.float32))
assert (shared() > before) == made
dist.destroy_process_group()
print("all well")
