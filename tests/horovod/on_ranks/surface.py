"""On each rank, what else Horovod has: each operation, scaling, join, reducescatter, Adasum; and
what of it omnihvd takes.

argv: "mpi", or "gloo", where Horovod has no Adasum, and tunes itself: without join, in which
Horovod waits for ever then, also by itself.
"""

from __future__ import annotations

import sys

import horovod.torch as hvd
import torch

import omnihvd

COUNT = 70_001


def of(rank: int, seed: int = 0) -> torch.Tensor:
    """Small integers and zero blocks, so that sums are exact."""
    random = torch.Generator().manual_seed(100 * seed + rank)
    values = torch.randint(-3, 4, (COUNT,), generator=random).float()
    values[(torch.arange(COUNT) // 256) % 4 != rank % 4] = 0
    return values


def everyone(seed: int = 0) -> torch.Tensor:
    return torch.stack([of(rank, seed) for rank in range(hvd.size())])


def passed(figures: dict) -> set[str]:
    """Why sums were left to the library."""
    return {why for why, calls in figures["passed"].items() if calls["calls"]} - {"control"}


def operations() -> None:
    x = of(hvd.rank())
    expected = {
        "Sum": everyone().sum(0),
        "Average": everyone().sum(0) / hvd.size(),
        "Min": everyone().amin(0),
        "Max": everyone().amax(0),
        "Product": everyone().prod(0),
    }
    for name, result in expected.items():
        step = omnihvd.Statistics()
        got = hvd.allreduce(x, op=getattr(hvd, name), name=name)
        torch.testing.assert_close(got, result, rtol=1e-6, atol=0)
        ours = name in ("Sum", "Average")
        figures = step.read()
        assert figures["calls"] == ours, (name, figures["calls"])
        assert ("op" in passed(figures)) != ours, (name, figures["passed"])


def scaling() -> None:
    x = of(hvd.rank(), 1)
    for op, divisor in ((hvd.Sum, 1), (hvd.Average, hvd.size())):
        got = hvd.allreduce(
            x, op=op, prescale_factor=0.5, postscale_factor=4.0, name=f"scaled.{divisor}"
        )
        torch.testing.assert_close(got, 2 * everyone(1).sum(0) / divisor, rtol=1e-6, atol=0)
    assert torch.equal(x, of(hvd.rank(), 1))


def scattered() -> None:
    rows = of(hvd.rank(), 2)[: 70_000 // 7 * 7].view(-1, 7)
    total = everyone(2).sum(0)[: rows.numel()].view(-1, 7)
    sizes = [len(rows) // hvd.size() + (i < len(rows) % hvd.size()) for i in range(hvd.size())]
    begin = sum(sizes[: hvd.rank()])
    for op, divisor in ((hvd.Sum, 1), (hvd.Average, hvd.size())):
        step = omnihvd.Statistics()
        got = hvd.reducescatter(rows, op=op, name=f"scattered.{divisor}")
        mine = total[begin : begin + sizes[hvd.rank()]] / divisor
        torch.testing.assert_close(got, mine, rtol=1e-6, atol=0)
        figures = step.read()
        assert figures["calls"] == 1 and not passed(figures), figures


def adasum() -> None:
    """The sum of orthogonal gradients, the average of equal ones."""
    x = torch.zeros(80_000)
    x[20_000 * hvd.rank() : 20_000 * hvd.rank() + 999] = 1.0 + hvd.rank()
    step = omnihvd.Statistics()
    got = hvd.allreduce(x, op=hvd.Adasum, name="orthogonal")
    total = torch.zeros(80_000)
    for rank in range(hvd.size()):
        total[20_000 * rank : 20_000 * rank + 999] = 1.0 + rank
    torch.testing.assert_close(got, total)
    same = torch.arange(80_000.0)
    torch.testing.assert_close(hvd.allreduce(same, op=hvd.Adasum, name="equal"), same)
    figures = step.read()
    # Its scalar products alone are sums: three doubles each.
    assert figures["bytes_in"] <= 24 * figures["calls"], figures
    assert passed(figures) <= {"small"}, figures["passed"]


def training(batches: int) -> None:
    """Sums several tensors as long as there are batches; then the rank joins, if it may."""
    weights = [torch.nn.Parameter(torch.zeros(COUNT)) for _ in range(3)]
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(weights, 1.0), [(f"w{i}", w) for i, w in enumerate(weights)], op=hvd.Sum
    )
    for step in range(batches):
        optimizer.zero_grad()
        sum((w * of(hvd.rank(), 10 * step + i)).sum() for i, w in enumerate(weights)).backward()
        optimizer.step()
    if uneven():
        last = hvd.join()
        assert last == hvd.size() - 1, last
    if hvd.rank() == hvd.size() - 1:
        for i, w in enumerate(weights):
            total = torch.zeros(COUNT)
            for rank in range(hvd.size()):
                for step in range(batches_of(rank)):
                    total -= of(rank, 10 * step + i)
            assert torch.equal(w.detach(), total), i


def uneven() -> bool:
    return "gloo" not in sys.argv


def batches_of(rank: int) -> int:
    return 2 + 2 * rank if uneven() else 12


if __name__ == "__main__":
    hvd.init()
    operations()
    scaling()
    scattered()
    if "gloo" not in sys.argv:
        adasum()
    training(batches_of(hvd.rank()))
    assert omnihvd.stats()["calls"] > 0
    print("all well")
