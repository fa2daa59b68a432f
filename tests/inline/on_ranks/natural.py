"""On each rank: sums under the codec natural, where OMNIHVD_ARITHMETIC sums integers.

natural.py horovod|torch WAY    the way that the sums go
"""

from __future__ import annotations

import sys

import torch
from begin import begin

import omnihvd
from omnihvd import OmniReduce

library, way = sys.argv[1:]
rank, size = begin(library)
if library == "torch":
    import torch.distributed as dist

    from omnihvd.torch.hook import average
else:
    import horovod.torch as hvd
before = omnihvd.Statistics()


def mean(tensor: torch.Tensor, name: str, codec: object) -> torch.Tensor:
    if library == "torch":
        return average(dist.group.WORLD, tensor.clone(), codec).wait()
    return hvd.allreduce(tensor, name=name, compression=codec)


def powers(of: int) -> torch.Tensor:
    """Integers of their blocks' scales, and some zero blocks."""
    index = torch.arange(100_000)
    signs = 1 - 2 * (index // 3 % 2)
    return torch.where(index // 256 % 3 == 1, 0.0, signs * 2.0 ** ((index * (of + 3)) % 19 - 9))


expected = sum(powers(r) for r in range(size)) / size
assert torch.equal(mean(powers(rank), "powers", OmniReduce.natural()), expected)
x = torch.ones(1000)
x[700] = torch.inf if rank else 1.0
x[701] = torch.nan
got = mean(x, "no numbers", OmniReduce.natural())
assert got[700] == torch.inf and got[701].isnan() and got.eq(1).sum() == 998
figures = before.read(reset=True)
used = {name for name, of in figures["ways"].items() if of["calls"]}
assert used == {way}, used
coded = figures["codecs"]
assert coded["blocks"] and coded["bytes"], coded

# Nothing is a power of two: unbiased, and alike on all ranks.
x = torch.randn(20_000, generator=torch.Generator().manual_seed(rank))
exact = sum(torch.randn(20_000, generator=torch.Generator().manual_seed(r)) for r in range(size))
drawn = torch.stack([mean(x, "drawn", OmniReduce.natural()) * size for _ in range(40)])
assert abs(((drawn.mean(0) - exact) * exact.sign()).mean()) < 0.005
assert not torch.equal(drawn[0], drawn[1])
if library == "torch":
    others = [torch.empty_like(drawn) for _ in range(size)]
    dist.all_gather(others, drawn)
    assert all(torch.equal(other, drawn) for other in others)

try:
    mean(torch.ones(1000), "no powers", OmniReduce.qsgd(4))
    raise SystemExit("summed as if nothing had happened")
except RuntimeError as why:
    print(f"failed: {why}", flush=True)
print("all well", flush=True)
