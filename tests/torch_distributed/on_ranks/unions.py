"""On each rank: averages by union_hook, and reduce-scatters, against those that each rank works out
for all ranks. The arguments: "sums", "groups", "scatters", "trains", or "dies" for rank 1, in its
second step; and the ranks of a server."""

from __future__ import annotations

import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from omnihvd.torch import UnionReduceScatter, UnionState, union_hook

what, local = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo", timeout=timedelta(seconds=30))
rank, size = dist.get_rank(), dist.get_world_size()
BLOCK = 256
SIZES = (1, BLOCK - 1, BLOCK, BLOCK + 1, 10 * BLOCK + 3, 70_001)
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def tensor(count: int, of: int, dtype: torch.dtype, one_in: int) -> torch.Tensor:
    """In every `one_in`-th block another number at each place of each rank. The first blocks are
    -0.0 on rank 0, and all others 0.0."""
    place = torch.arange(count)
    x = (place % 61 + 64 * of + 1) / 8
    zero = torch.where((place < 3 * BLOCK) & (torch.tensor(of) == 0), -0.0, 0.0)
    return torch.where((place // BLOCK + of) % one_in == 0, x, zero).to(dtype)


def mean(count: int, dtype: torch.dtype, one_in: int) -> torch.Tensor:
    each = [tensor(count, of, dtype, one_in) / size for of in range(size)]
    total = each[0].clone()
    for other in each[1:]:
        total += other
    return total


def bits(x: torch.Tensor) -> list[int]:
    return x.view(torch.uint8).tolist()


def sums() -> None:
    state = UnionState(least_bytes=1, local_ranks=local, densest=0.8)
    for dtype in DTYPES:
        for count in SIZES:
            x = tensor(count, rank, dtype, 7)
            want = mean(count, dtype, 7)
            found = state.average(x, number=count).wait()
            assert found is x
            torch.testing.assert_close(found, want, rtol=2**-7, atol=0)
            others = [torch.empty_like(x) for _ in range(size)]
            dist.all_gather(others, x)
            assert all(bits(other) == bits(x) for other in others), "ranks differ"
    union = min(size + (local > 1), 7) / 7  # a share may begin within a block
    assert state.elements == len(DTYPES) * sum(SIZES)
    assert state.summed < (union + 0.1) * state.elements / local
    x = torch.full((70_001,), float("nan") if rank == 0 else 0.0)
    assert state.average(x).wait().isnan().all()
    # Small and sparse tensors are summed as a whole.
    before = state.summed
    few = UnionState(least_bytes=10_000)
    few.average(torch.zeros(1000)).wait()
    assert few.summed == few.elements == 1000
    rows = torch.eye(3).to_sparse() * (rank + 1)
    total = state.average(rows).wait().to_dense()
    assert torch.allclose(total, torch.eye(3) * (size + 1) / 2) and state.summed == before + 9


def must_divide() -> None:
    try:
        UnionState(local_ranks=size + 1)
    except ValueError as why:
        said = f"{size} ranks on servers of {size + 1}: give local_ranks= a divisor"
        assert str(why) == said, why
    else:
        raise AssertionError("servers of more ranks than there are")


def averages(state: UnionState, ranks: list[int]) -> None:
    """Other numbers at each place of each rank of `ranks`."""
    place = torch.arange(3.0 * BLOCK)
    x = state.average(100 * place + rank).wait()
    torch.testing.assert_close(x, 100 * place + sum(ranks) / len(ranks))


def among_other_groups() -> None:
    """Ranks of one state belong to different numbers of groups."""
    everyone, some = list(range(size)), [0, size - 1]
    pair = dist.new_group(some, timeout=timedelta(seconds=5), backend="cpu:gloo")
    if rank in some:
        state = UnionState(pair, least_bytes=1, local_ranks=2 if local > 1 else 1)
        averages(state, some)
        for own in filter(None, (state._own, state._inside, state._between)):
            options = own._get_backend(torch.device("cpu")).options
            assert options._timeout == timedelta(seconds=5), options._timeout
            assert dist.get_backend(own) == "cpu:gloo", dist.get_backend(own)
    dist.new_group([0, 1])
    averages(UnionState(least_bytes=1), everyone)
    averages(UnionState(least_bytes=1, local_ranks=local), everyone)
    averages(UnionState(least_bytes=1, local_ranks=size), everyone)
    if rank in some:
        try:
            UnionState(pair)
        except ValueError as why:
            assert "make UnionState before the groups that only some of them" in str(why), why
        else:
            raise AssertionError("PyTorch would wait for a group of another name")


def are_ever_fewer() -> None:
    """Looks: a dense bucket is looked at ever more seldom, one that gets sparse again each time."""
    state = UnionState(least_bytes=1)
    looks, unite = [], state._union
    state._union = lambda body: looks.append(sums) or unite(body)  # type: ignore
    for sums in range(80):
        tensor = torch.ones(20 * BLOCK) if sums < 40 else torch.zeros(20 * BLOCK)
        state.average(tensor).wait()
    assert looks == [0, 2, 6, 14, 30, *range(62, 80)], looks


def scatters() -> None:
    reduce_scatter = UnionReduceScatter(least_bytes=1, densest=0.8)
    group = dist.group.WORLD
    for dtype in DTYPES:
        for count in SIZES:  # of a share
            given = tensor(size * count, rank, dtype, 7)
            out = torch.full((count,), 5, dtype=dtype)
            reduce_scatter(out, given, group=group, op=dist.ReduceOp.SUM)
            want = mean(size * count, dtype, 7) * size
            mine = want[rank * count : (rank + 1) * count]
            torch.testing.assert_close(out, mine, rtol=2**-6, atol=0)
    assert reduce_scatter.elements == size * len(DTYPES) * sum(SIZES)
    union = (min(size, 7) + 1) / 7  # shares begin within blocks
    assert reduce_scatter.summed < (union + 0.1) * reduce_scatter.elements
    # One share is full, the others are empty: nothing is saved.
    before = reduce_scatter.summed
    given = torch.zeros(size, 20 * BLOCK)
    given[size - 1] = rank + 1
    out = torch.empty(20 * BLOCK)
    reduce_scatter(out, given.view(-1), group=group, op=dist.ReduceOp.SUM)
    assert reduce_scatter.summed == before + given.numel()
    assert out.unique().tolist() == [size * (size + 1) / 2 if rank == size - 1 else 0]
    for given in (torch.zeros(size * 20 * BLOCK), torch.full((size * 20 * BLOCK,), float("nan"))):
        reduce_scatter(out, given, group=group, op=dist.ReduceOp.SUM)
        assert torch.equal(out.isnan(), given.isnan()[: len(out)])
    small = UnionReduceScatter(least_bytes=10_000 * size)
    small(out[:1000], torch.zeros(1000 * size), group=group, op=dist.ReduceOp.SUM)
    assert small.summed == small.elements == 1000 * size


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(2000, 64)
        self.layer = torch.nn.Linear(64, 100)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.layer(self.table(words)).square().sum()


def trained(hook: bool, steps: int = 5) -> tuple[list[torch.Tensor], UnionState | None]:
    torch.manual_seed(1)
    model = Model()
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.2)
    state = UnionState(least_bytes=1, local_ranks=local) if hook else None
    if hook:
        ddp.register_comm_hook(state, union_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for step in range(steps):
        if what == "dies" and rank == 1 and step == 1:
            sys.exit()
        optimizer.zero_grad()
        ddp(torch.tensor([rank, 7 * rank + step, 1000 + step])).backward()
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()], state


if what == "sums":
    sums()
    must_divide()
    are_ever_fewer()
elif what == "groups":
    among_other_groups()
elif what == "scatters":
    scatters()
else:
    ours, state = trained(hook=True)
    assert state is not None and 0 < state.summed < 0.2 * state.elements
    for mine, theirs in zip(ours, trained(hook=False)[0]):
        torch.testing.assert_close(mine, theirs)
dist.barrier()
dist.destroy_process_group()
print("all well")
