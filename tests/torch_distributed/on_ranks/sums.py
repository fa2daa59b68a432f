"""On each rank: all that a process group does. Its backend is the first argument; an allreduce
of what omnihvd takes must be omnihvd's."""

from __future__ import annotations

import os
import sys
import threading
from datetime import timedelta

import torch
import torch.distributed as dist
from contributions import part, total
from torch.distributed import ReduceOp

import omnihvd

backend = sys.argv[1]
if "omnihvd" in backend:
    import omnihvd.torch
options = {"timeout": timedelta(seconds=15)}
dist.init_process_group(backend, **options)
rank, size = dist.get_rank(), dist.get_world_size()
everyone = list(range(size))
before = omnihvd.Statistics()

taken = 0
for count in (0, 1, 255, 65_535, 65_536, 65_537, 300_001):
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        tensor = part(rank, count, dtype)
        dist.all_reduce(tensor)
        assert torch.equal(tensor, total(everyone, count, dtype)), (count, dtype)
        dist.all_reduce(tensor, ReduceOp.AVG)
        assert torch.equal(tensor, total(everyone, count, dtype)), (count, dtype)
        taken += 2 * (tensor.nbytes >= 262144)
    for dtype in (torch.int8, torch.uint8, torch.int32, torch.int64):
        tensor = part(rank, count, dtype)
        dist.all_reduce(tensor)
        assert torch.equal(tensor, total(everyone, count, dtype)), (count, dtype)
        taken += tensor.nbytes >= 262144
assert sum(way["calls"] for way in before.read()["ways"].values()) == taken > 0

# Tensors that are not in a row, or not of one dimension.
tensor = part(rank, 900_000).view(300, 3000).t()
dist.all_reduce(tensor)
assert torch.equal(tensor, total(everyone, 900_000).view(300, 3000).t())
tensor = part(rank, 200_001)
dist.all_reduce(tensor[1:])
assert torch.equal(tensor[1:], total(everyone, 200_001)[1:])

# A caller that waits at once makes the sum in its own thread, but behind earlier calls.
threads = {thread.name for thread in threading.enumerate()}
assert "omnihvd sums" not in threads, threads
tensor = part(rank, 500_000, torch.int64)
works = [dist.all_reduce(tensor, async_op=True) for _ in range(3)]
dist.all_reduce(tensor)
assert all(work.is_completed() for work in works)
assert torch.equal(tensor, total(everyone, 500_000, torch.int64) * size**3)

# Several tensors in one call of ProcessGroup.allreduce: each gets the sum of all of all ranks.
pair = [part(rank, 70_000), part(rank + 1, 70_000)]
dist.group.WORLD.allreduce(pair).wait()
both = total(everyone, 70_000) + total([r + 1 for r in everyone], 70_000)
assert torch.equal(pair[0], both) and torch.equal(pair[1], both)

# Many at once, with others of the backend between them.
works = []
for i in range(8):
    tensor = part(rank + i, 150_000 + i)
    works.append((tensor, dist.all_reduce(tensor, async_op=True)))
    small = torch.tensor([rank + i])
    dist.all_reduce(small)
    assert small.item() == size * (size - 1) // 2 + size * i
for i, (tensor, work) in enumerate(works):
    assert work.wait() and work.is_completed() and work.is_success()
    assert work.result()[0] is tensor and work.get_future().wait()[0] is tensor
    assert torch.equal(tensor, total([r + i for r in everyone], 150_000 + i))

# Reduce-scatters, of tensors that are large enough as a whole.
scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
scattered = omnihvd.Statistics()
taken = 0
for count in (1, 21_845, 21_846, 60_001):
    own = slice(rank * count, (rank + 1) * count)
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64):
        share, given = torch.empty(count, dtype=dtype), part(rank, size * count, dtype)
        scatter(share, given)
        assert torch.equal(share, total(everyone, size * count, dtype)[own]), (count, dtype)
        assert torch.equal(given, part(rank, size * count, dtype)), (count, dtype)
        taken += given.nbytes >= 262144
    alike = total(everyone, size * count)
    scatter(share := torch.empty(count), alike, ReduceOp.AVG)
    assert torch.equal(share, alike[own])
    scatter(alike[own], alike, async_op=True).wait()  # to where this rank's share is
    assert torch.equal(alike[own], total(everyone, size * count)[own] * size)
    taken += 2 * (alike.nbytes >= 262144)
counted = scattered.read(reset=True)
assert counted["calls"] == counted["reduce_scatters"] == taken > 0
share, tensor = torch.empty(50_000), part(rank, size * 50_000)
scatter(share, tensor, ReduceOp.MAX)
own = slice(rank * 50_000, (rank + 1) * 50_000)
assert torch.equal(share, torch.stack([part(r, size * 50_000) for r in everyone]).amax(0)[own])
assert scattered.read()["passed"]["op"]["calls"] == 1
works = [scatter(share, tensor, async_op=True), dist.all_reduce(tensor, async_op=True)]
assert all(work.wait() for work in works)
assert torch.equal(share, total(everyone, size * 50_000)[own])
assert torch.equal(tensor, total(everyone, size * 50_000))

# Calls that are not taken are the backend's, and counted.
passed = before.read(reset=True)["passed"]
assert passed["small"]["calls"] > 0 and passed["empty"]["calls"] > 0, passed
tensor = part(rank, 100_000)
dist.all_reduce(tensor, ReduceOp.MAX)
assert torch.equal(tensor, torch.stack([part(r, 100_000) for r in everyone]).amax(0))
assert before.read()["passed"] == {
    **{reason: {"calls": 0, "bytes": 0} for reason in passed},
    "op": {"calls": 1, "bytes": 400_000},
}

# Lists: summed as one, however small each is.
before.read(reset=True)
pair = [part(rank, 300), part(rank + 1, 70_000).view(100, 700).t()]
dist.all_reduce_coalesced(pair)
assert torch.equal(pair[0], total(everyone, 300))
assert torch.equal(pair[1], total([r + 1 for r in everyone], 70_000).view(100, 700).t())
assert sum(way["calls"] for way in before.read(reset=True)["ways"].values()) == 1

# Other collectives.
gathered = [torch.empty(5) for _ in everyone]
dist.all_gather(gathered, part(rank, 5))
assert torch.equal(torch.stack(gathered), torch.stack([part(r, 5) for r in everyone]))
flat = torch.empty(size * 7)
dist.all_gather_into_tensor(flat, part(rank, 7))
assert torch.equal(flat, torch.cat([part(r, 7) for r in everyone]))
tensor = part(rank, 100_000)
dist.broadcast(tensor, size - 1)
assert torch.equal(tensor, part(size - 1, 100_000))
tensor = part(rank, 100_000)
dist.reduce(tensor, 0)
assert rank or torch.equal(tensor, total(everyone, 100_000))
shares = [part(rank + r, 9) for r in everyone]
share = torch.empty(9)
dist.reduce_scatter(share, shares)
assert torch.equal(share, total([r + rank for r in everyone], 9))
objects = [None] * size
dist.all_gather_object(objects, {"rank": rank})
assert objects == [{"rank": r} for r in everyone]
scattered = torch.empty(3)
dist.scatter(scattered, [part(r, 3) for r in everyone] if rank == 0 else None)
assert torch.equal(scattered, part(rank, 3))
if rank == 0:
    dist.send(part(5, 20), 1)
elif rank == 1:
    dist.recv(scattered := torch.empty(20), 0)
    assert torch.equal(scattered, part(5, 20))
batch = [
    dist.P2POp(dist.isend, part(rank, 20), (rank + 1) % size),
    dist.P2POp(dist.irecv, received := torch.empty(20), (rank - 1) % size),
]
for work in dist.batch_isend_irecv(batch):
    work.wait()
assert torch.equal(received, part((rank - 1) % size, 20))
dist.barrier()

# Sparse tensors: ranks share some rows; entries repeat; one rank has none.
for rows in ([rank, 900, 900], [] if rank else [3, 2], []):
    values = torch.arange(1.0, len(rows) + 1).unsqueeze(1).repeat(1, 128) + rank
    where = torch.tensor([rows], dtype=torch.int64)
    tensor = torch.sparse_coo_tensor(where, values, (1000, 128), check_invariants=True)
    everyones = [torch.empty(1000, 128) for _ in everyone]
    dist.all_gather(everyones, tensor.to_dense())
    dist.all_reduce(tensor)
    assert torch.equal(tensor.to_dense(), torch.stack(everyones).sum(0))
assert before.read()["sparse"]["gradients"] == 3

# Groups of some ranks, at the same time; one of one rank.
some = dist.new_group([0, size - 1], **options)
own = [dist.new_group([r]) for r in everyone][rank]
if rank in (0, size - 1):
    before.read(reset=True)
    tensor = part(rank, 100_000)
    dist.all_reduce(tensor, group=some)
    assert torch.equal(tensor, total([0, size - 1], 100_000))
    assert sum(way["calls"] for way in before.read()["ways"].values()) == 1
tensor = part(rank, 100_000)
dist.all_reduce(tensor, group=own)
assert torch.equal(tensor, part(rank, 100_000))
if rank in (0, size - 1):
    dist.destroy_process_group(some)

# A new beginning.
dist.destroy_process_group()
os.environ["MASTER_PORT"] = os.environ["LATER_PORT"]
dist.init_process_group(backend, **options)
tensor = part(rank, 100_000)
dist.all_reduce(tensor)
assert torch.equal(tensor, total(everyone, 100_000))
dist.destroy_process_group()
print("all well")
