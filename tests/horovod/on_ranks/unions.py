"""On each rank: trainings by Horovod's optimizer with sum_unions(), against those without it."""

from __future__ import annotations

from typing import Any

import horovod.torch as hvd
import torch

from omnihvd.compression import OmniReduce
from omnihvd.torch import sum_unions

hvd.init()
rank, size = hvd.rank(), hvd.size()
BLOCK = 256


class Model(torch.nn.Module):
    """A table of a length that no block divides, a dense layer, and one that no input reaches."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(2001, 50)
        self.layer = torch.nn.Linear(50, 100)
        self.never = torch.nn.Linear(50, 100)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.layer(self.table(words)).square().sum()


def trained(unions: bool, op: Any, dtype: torch.dtype, passes: int) -> list[torch.Tensor]:
    torch.manual_seed(1)
    model = Model().to(dtype)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=2**-12, momentum=0.5),
        model.named_parameters(),
        OmniReduce if unions else hvd.Compression.none,
        op=op,
        backward_passes_per_step=passes,
    )
    if unions:
        assert sum_unions(optimizer, BLOCK, least_bytes=1) is optimizer
        hidden = optimizer._allreduce_grad_async.__self__
    for step in range(4):
        optimizer.zero_grad()
        for turn in range(passes):
            model(torch.tensor([rank, 7 * rank + step, 1000 + turn])).backward()
        optimizer.step()
    if unions:
        tables = [name for name in hidden._patience if "table" in name]
        assert hidden._patience[tables[0]]._patience == 0  # always sparse
        assert any(p._patience > 0 for p in hidden._patience.values())  # the layer
    return [p.detach().clone() for p in model.parameters()]


def are_alike(op: Any, dtype: torch.dtype, passes: int) -> None:
    mine, plain = trained(True, op, dtype, passes), trained(False, op, dtype, passes)
    for ours, theirs in zip(mine, plain):
        torch.testing.assert_close(ours, theirs)
        assert torch.equal(ours, hvd.broadcast(ours, 0)), "ranks differ"


def only_unions_are_summed() -> None:
    """Counts the elements that Horovod sums. A NaN of one rank reaches all."""
    from horovod.torch import mpi_ops

    model = torch.nn.Embedding(1000, BLOCK)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters(), op=hvd.Sum
    )
    sum_unions(optimizer, BLOCK, least_bytes=1)
    original, summed = mpi_ops.allreduce_async_, []

    def counting(tensor: torch.Tensor, **how: Any) -> int:
        summed.append((how["name"].rpartition(".")[2], tensor.numel()))
        return original(tensor, **how)

    mpi_ops.allreduce_async_ = counting
    torch.nn.init.zeros_(model.weight)
    values = torch.full((BLOCK,), float(rank + 1))
    values[5] = float("nan") if rank == size - 1 else 0.0
    (model(torch.tensor([3, 10 + rank])) * values).sum().backward()
    optimizer.step()
    mpi_ops.allreduce_async_ = original
    assert sorted(summed) == [("marks", 1000), ("union", (1 + size) * BLOCK)], summed
    total = -model.weight.detach()
    assert total[3, 0] == size * (size + 1) / 2 and total[10, 1] == 1 and total[20, 0] == 0
    assert total[3, 5].isnan() and (total[10, 5].isnan() == (size == 1))
    optimizer.zero_grad()
    (model(torch.tensor([0])) * 0.0).sum().backward()  # nothing, on all ranks
    optimizer.step()


only_unions_are_summed()
are_alike(hvd.Average, torch.float32, 1)
are_alike(hvd.Sum, torch.float64, 2)
print("all well")
hvd.shutdown()
