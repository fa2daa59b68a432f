"""On each rank: a library's sums through an in-network aggregator, and what goes elsewhere.

    sums.py horovod|torch AGGREGATOR'S-PID

The process with that number is killed in the midst of the last sum; 0: none is.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from typing import Any

import torch
from begin import begin

import omnihvd

library, aggregator = sys.argv[1], int(sys.argv[2])
rank, size = begin(library)
if library == "torch":
    import torch.distributed as dist
    from torch.distributed import DistBackendError as Failed
else:
    import horovod.torch as hvd
    from horovod.common.exceptions import HorovodInternalError as Failed
before = omnihvd.Statistics()


def begin(tensor: torch.Tensor, name: str, largest: bool = False) -> Any:
    if library == "torch":
        op = dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM
        return dist.all_reduce(tensor, op, async_op=True)
    return hvd.allreduce_async_(tensor, op=hvd.Max if largest else hvd.Sum, name=name)


def end(handle: Any) -> None:
    if library == "torch":
        handle.wait()
    else:
        hvd.synchronize(handle)


def part(of: int, count: int) -> torch.Tensor:
    """int64: two of three blocks are not zero; no two elements of all ranks are equal."""
    index = torch.arange(count)
    return torch.where((index // 256 + of) % 3 > 0, index * size + of + 1, 0)


def total(count: int) -> torch.Tensor:
    return torch.stack([part(r, count) for r in range(size)]).sum(0)


def ways() -> dict[str, int]:
    return {w: n["calls"] for w, n in before.read(reset=True)["ways"].items() if n["calls"]}


# Such an aggregator sums these, several at once.
cases = [(n, d) for n in (65_536, 65_537, 300_001) for d in (torch.int32, torch.float32)]
given = [part(rank, n).to(d) for n, d in cases]
for handle in [begin(x, f"{i}") for i, x in enumerate(given)]:
    end(handle)
for (count, dtype), x in zip(cases, given):
    assert torch.equal(x, total(count).to(dtype)), (count, dtype)
made = ways()
assert set(made) == {"inline"} and (library == "horovod" or made["inline"] == len(cases)), made
halves = (torch.float16, torch.bfloat16)[: 2 if library == "torch" else 1]
for dtype in halves:
    x = (part(rank, 200_000) % 64).to(dtype)
    end(begin(x, str(dtype)))
    assert torch.equal(x, sum(part(r, 200_000) % 64 for r in range(size)).to(dtype)), dtype
assert ways() == {"inline": len(halves)}
x = torch.ones(100_000)
x[70_000] = torch.tensor([torch.inf, 1.0, -torch.inf])[rank % 3]
x[70_001] = torch.inf if rank else 1.0
end(begin(x, "no numbers"))
assert x[70_000].isnan() and x[70_001] == torch.inf and x.eq(size).sum() == 99_998
figures = before.read(reset=True)
assert figures["datagrams"]["sent"] > 0 and figures["failures"] == 0, figures
assert figures["density"] == 1 and figures["ways"]["inline"]["calls"] == 1, figures

# It does not sum these.
for dtype in (torch.float64, torch.int64):
    x = part(rank, 100_000).to(dtype)
    end(begin(x, f"other {dtype}"))
    assert torch.equal(x, total(100_000).to(dtype)), dtype
assert ways() == {"stream": 2}
x = torch.full((100_000,), float(rank))
end(begin(x, "largest", largest=True))
assert x.eq(size - 1).all()
assert before.read(reset=True)["passed"]["op"]["calls"] == 1
if library == "torch":  # groups of their own: one that is taken, one for which there is no room
    for ranks, way in (([0, size - 1], "inline"), ([0, 1], "stream")):
        group = dist.new_group(ranks)
        if rank in ranks:
            x = part(rank, 100_000).float()
            dist.all_reduce(x, group=group)
            assert torch.equal(x, sum(part(r, 100_000) for r in ranks).float())
            assert ways() == {way: 1}

# Its end.
if aggregator:
    x = torch.ones(8_000_000)
    calls = omnihvd.stats()["calls"]

    def kill() -> None:
        while omnihvd.stats()["calls"] == calls:
            time.sleep(1e-3)
        os.kill(aggregator, signal.SIGKILL)

    if rank == 0:
        threading.Thread(target=kill, daemon=True).start()
    begun = time.monotonic()
    try:
        end(begin(x, "the last"))
        raise SystemExit("summed as if nothing had happened")
    except Failed as why:
        print(f"failed within {time.monotonic() - begun:.1f} s: {why}", flush=True)
    assert omnihvd.stats()["failures"] == 1
    time.sleep(1)  # the others are to have their say
print("all well", flush=True)
if aggregator:
    os._exit(0)
