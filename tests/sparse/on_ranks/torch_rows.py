"""On each rank: sparse embeddings, trained as by one process with dense gradients of all batches.

Under OMNIHVD_ENABLE=0 the same holds of Horovod's own path, in those cases that it can do.
"""

from __future__ import annotations

import os
from typing import Any

import horovod.torch as hvd
import torch
from torch import nn

import omnihvd
from omnihvd import OmniReduce

WORDS, WIDTH = 3000, 16
ENABLED = os.environ.get("OMNIHVD_ENABLE") != "0"


class Model(nn.Module):
    """Two tables and a dense layer. A rank can leave out the second table."""

    def __init__(self, sparse: bool, dtype: torch.dtype) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first = nn.Embedding(WORDS, WIDTH, sparse=sparse, dtype=dtype)
        self.second = nn.Embedding(WORDS // 10, WIDTH, sparse=sparse, dtype=dtype)
        self.last = nn.Linear(WIDTH, 1, dtype=dtype)

    def loss(self, words: torch.Tensor, with_second: bool = True) -> torch.Tensor:
        hidden = self.first(words).sum(1)
        if with_second:
            hidden = hidden + self.second(words % (WORDS // 10)).sum(1)
        return self.last(hidden).pow(2).mean()


def batch(rank: int, step: int) -> torch.Tensor:
    """Few words, so that they repeat in a rank; most of 3000 never occur. Ranks share most of them
    in step 1, few in the others."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    words = torch.randint(0, 40, (8, 5), generator=generator) * (1 + rank)
    if step == 1:
        words %= 20
    return words[: 8 - 3 * rank]  # batches of different sizes


def optimizers(name: str, model: Model, sparse: bool) -> list[torch.optim.Optimizer]:
    """One for the tables, one for the rest."""
    tables = [*model.first.parameters(), *model.second.parameters()]
    if name == "sgd":
        table = torch.optim.SGD(tables, lr=0.05)
    elif sparse:
        table = torch.optim.SparseAdam(tables, lr=0.01)
    else:
        # SparseAdam on rows that are the union's: what Adam does, in rows that have a gradient.
        table = LazyAdam(tables, lr=0.01)
    return [table, torch.optim.SGD(model.last.parameters(), lr=0.05)]


class LazyAdam(torch.optim.SparseAdam):
    """SparseAdam of dense gradients: their rows that are not zero."""

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.grad = p.grad.to_sparse(1)
        super().step()


def train(
    name: str,
    op: Any,
    members: list[int],
    process_set: Any,
    dtype: torch.dtype = torch.float64,
    skipping: int | None = None,
    **options: Any,
) -> None:
    """Checks three steps on members; the rank `skipping` has no gradient of the second table."""
    compression = options.pop("compression", OmniReduce)
    model = Model(True, dtype)
    steps = [
        hvd.DistributedOptimizer(
            optimizer,
            [(f"{i}.{j}", p) for j, p in enumerate(optimizer.param_groups[0]["params"])],
            compression=compression,
            op=op,
            process_set=process_set,
            **options,
        )
        for i, optimizer in enumerate(optimizers(name, model, True))
    ]
    alone = Model(False, dtype)
    alone_steps = optimizers(name, alone, False)
    for step in range(3):
        for optimizer in steps:
            optimizer.zero_grad()
        model.loss(batch(hvd.rank(), step), hvd.rank() != skipping).backward()
        for optimizer in steps:
            optimizer.step()
        alone.zero_grad()
        for rank in members:
            loss = alone.loss(batch(rank, step), rank != skipping)
            (loss / len(members) if op == hvd.Average else loss).backward()
        for optimizer in alone_steps:
            optimizer.step()
        if ENABLED and not options:
            check_rows(model.first.weight.grad, members, step)
    tolerance = {"rtol": 1e-2, "atol": 1e-2} if dtype == torch.float16 else {}
    for ours, theirs in zip(model.parameters(), alone.parameters()):
        torch.testing.assert_close(ours, theirs, **tolerance)


def check_rows(gradient: torch.Tensor, members: list[int], step: int) -> None:
    """The gradient holds each row of the union once."""
    union = torch.unique(torch.cat([batch(rank, step).flatten() for rank in members]))
    assert gradient.is_sparse and torch.equal(gradient._indices()[0], union)


def many_tables_in_different_orders() -> None:
    """Gradients become ready in another order on each rank: none may wait for another's sum."""
    tables = [nn.Embedding(50, 4, sparse=True) for _ in range(8)]
    for table in tables:
        nn.init.zeros_(table.weight)
    named = [(f"many.{i}", table.weight) for i, table in enumerate(tables)]
    optimizer = torch.optim.SGD([p for _, p in named], lr=1.0)
    optimizer = hvd.DistributedOptimizer(optimizer, named, compression=OmniReduce, op=hvd.Sum)
    order = tables if hvd.rank() % 2 else tables[::-1]
    loss = torch.zeros(1)
    for table in order:
        loss = loss + table(torch.tensor([hvd.rank(), 49])).sum()
    loss.backward()
    optimizer.step()
    expected = torch.zeros(50, 4)
    expected[: hvd.size()] = -1
    expected[49] = -hvd.size()
    for table in tables:
        torch.testing.assert_close(table.weight.detach(), expected)


def bare_parameters_that_only_some_ranks_use() -> None:
    """No module tells of these. The second gets its first rows in the second step."""
    tables = [nn.Parameter(torch.zeros(50, 4)) for _ in range(2)]
    named = [(f"bare.{i}", table) for i, table in enumerate(tables)]
    optimizer = torch.optim.SGD(tables, lr=1.0)
    optimizer = hvd.DistributedOptimizer(optimizer, named, compression=OmniReduce, op=hvd.Sum)
    for step in range(3):
        optimizer.zero_grad()
        for i, table in enumerate(tables):
            if hvd.rank() == 0 and i <= step:
                nn.functional.embedding(torch.tensor([i, 7]), table, sparse=True).sum().backward()
        optimizer.step()
    for i, table in enumerate(tables):
        expected = torch.zeros(50, 4)
        expected[[i, 7]] = float(i - 3)
        torch.testing.assert_close(table.detach(), expected)


def rows_are_counted() -> None:
    """All ranks share rows 10 to 12 of 50, the last of them twice, and rank r alone has row r."""
    rank, size = hvd.rank(), hvd.size()
    table = torch.zeros(50, 256, requires_grad=True)
    parameters = [("table", table)]
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([table], 1.0), named_parameters=parameters, compression=OmniReduce
    )
    words = torch.tensor([rank, 10, 11, 12, 12])
    step = omnihvd.Statistics()
    nn.functional.embedding(words, table, sparse=True).sum().backward()
    optimizer.step()
    figures, row = step.read(), 256 * 4
    if size == 2:  # gathering moves less
        assert figures["passed"]["rows"] == {"calls": 1, "bytes": 4 * row}, figures
        assert figures["sparse"]["gradients"] == 0, figures
        return
    assert "rows" not in figures["passed"] or figures["passed"]["rows"]["calls"] == 0, figures
    assert figures["sparse"] == {
        "gradients": 1,
        "own_bytes": 4 * row,
        "gathered_bytes": 4 * size * (row + 8),
        "union_bytes": (size + 3) * row,
        "dense_bytes": 50 * row,
    }, figures
    assert sum(way["bytes"] for way in figures["ways"].values()) == (size + 3) * row, figures
    assert abs(figures["density"] - 4 / 50) < 1e-9, figures  # not 4 / (size + 3)
    assert abs(figures["union_density"] - (size + 3) / 50) < 1e-9, figures
    assert abs(figures["ring_bytes"] - 2 * (size - 1) / size * 50 * row) < 50, figures


def ranks_end_at_different_steps_and_a_parameter_is_never_used() -> None:
    used, never = (nn.Parameter(torch.zeros(50)) for _ in range(2))
    sgd = torch.optim.SGD([used, never], lr=1.0)
    named = [("uneven.used", used), ("uneven.never", never)]
    optimizer = hvd.DistributedOptimizer(sgd, named, compression=OmniReduce, op=hvd.Sum)
    for _epoch in range(2):
        for _ in range(1 + hvd.rank()):
            optimizer.zero_grad()
            used.sum().backward()
            optimizer.step()
        hvd.join()
    if hvd.rank() == hvd.size() - 1:
        assert (used == -hvd.size() * (hvd.size() + 1)).all()


def main() -> None:
    torch.set_num_threads(1)
    size = int(os.environ["OMPI_COMM_WORLD_SIZE"])
    pair = hvd.ProcessSet([0, size - 1])
    hvd.init(process_sets=[pair] if size > 2 else [])  # Horovod refuses the global set's twin
    everyone, world = list(range(size)), hvd.global_process_set
    before = omnihvd.stats()
    for name in ("sgd", "adam"):
        for op in (hvd.Sum, hvd.Average):
            train(name, op, everyone, world)
    train("sgd", hvd.Average, everyone, world, sparse_as_dense=True)
    train("sgd", hvd.Average, everyone, world, dtype=torch.float16)
    if ENABLED:
        train("sgd", hvd.Average, everyone, world, skipping=0)
        train("adam", hvd.Sum, everyone, world, skipping=size - 1)
        train("sgd", hvd.Sum, everyone, world, compression=OmniReduce.block_topk(1.0))
        many_tables_in_different_orders()
        bare_parameters_that_only_some_ranks_use()
        rows_are_counted()
        ranks_end_at_different_steps_and_a_parameter_is_never_used()
    if size > 2 and pair.included():
        train("sgd", hvd.Average, [0, size - 1], pair)
    after = omnihvd.stats()
    assert after["failures"] == 0
    if ENABLED:  # both ways were taken, but for two ranks
        assert after["passed"]["rows"]["calls"] > 0, after
        assert (after["sparse"]["gradients"] > before["sparse"]["gradients"]) == (size > 2), after
    assert (after["calls"] > before["calls"]) == ENABLED, after
    hvd.barrier()  # the ranks outside of the pair would end the job
    print("all well", flush=True)


main()
