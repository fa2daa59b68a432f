"""On each rank: sums by the algorithm of a plugin, and calls that it leaves to the library."""

from __future__ import annotations

import torch
import torch.distributed as dist
from contributions import part, total
from torch.distributed import ReduceOp
from torch.nn.parallel import DistributedDataParallel

import omnihvd.torch

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
everyone = list(range(size))

# A chunk has 64 blocks of 256 elements; sums below 256 KiB are left to the library.
counts = (65_536, 65_537, 16_384 * 5 - 1, 16_384 * 5 + 1, 300_001)
for count in counts:
    for dtype in (torch.float32, torch.float64, torch.int64):
        tensor = part(rank, count, dtype)
        dist.all_reduce(tensor)
        assert torch.equal(tensor, total(everyone, count, dtype)), (count, dtype)
nothing = torch.zeros(100_000)
dist.all_reduce(nothing)
assert not nothing.any()
last = torch.zeros(100_000)
last[-1] = rank + 1
dist.all_reduce(last)
assert last[-1] == size * (size + 1) / 2 and not last[:-1].any()

ways = omnihvd.stats()["ways"]
assert ways["plugin"]["calls"] == 3 * len(counts) + 2, ways
assert all(way["calls"] == 0 for name, way in ways.items() if name != "plugin"), ways

# The plugin refuses reduce-scatters.
whole, share = part(rank, 100_000 * size), torch.empty(100_000)
dist.reduce_scatter_tensor(share, whole, op=ReduceOp.SUM)
sums = total(everyone, 100_000 * size)
assert torch.equal(share, sums[rank * 100_000 :][:100_000])
assert omnihvd.stats()["ways"]["original"]["calls"] == 1, omnihvd.stats()["ways"]

# It refuses codecs, and no library knows them.
model = DistributedDataParallel(torch.nn.Linear(400, 400))
model.register_comm_hook(
    omnihvd.torch.CodecState(omnihvd.OmniReduce.natural()), omnihvd.torch.codec_hook
)
try:
    model(torch.ones(2, 400)).sum().backward()
except Exception as error:
    assert "OMNIHVD_WAY=chunks sums no tensors under a codec: leave out one" in str(error), error
else:
    raise AssertionError("no error")
print("all well")
