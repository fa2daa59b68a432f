"""On each rank: programs that give a sum's work to PyTorch's C++, on Gloo first without omnihvd,
then with it. The results are the same. argv: the programs' names, else all."""

from __future__ import annotations

import os
import sys
import time
import warnings
from datetime import timedelta
from typing import Callable

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, init_device_mesh
from torch.nn.parallel import DistributedDataParallel

Results = list[torch.Tensor]
warnings.simplefilter("ignore")


def model_of(seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(6, 40), torch.nn.ReLU(), torch.nn.Linear(40, 3))


def inputs(steps: int) -> Results:
    random = torch.Generator().manual_seed(dist.get_rank())
    return [torch.randn(4, 6, generator=random) for _ in range(steps)]


def joined(zero: bool, static: bool) -> Results:
    """Ranks have different numbers of batches."""
    ddp = DistributedDataParallel(model_of(1), bucket_cap_mb=0.0005)
    optimizer: torch.optim.Optimizer = torch.optim.SGD(ddp.parameters(), 0.1)
    joinables: list = [ddp]
    if zero:
        optimizer = ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.Adam, lr=0.1)
        joinables.append(optimizer)
    with Join(joinables, divide_by_initial_world_size=static):
        for batch in inputs(3 + 2 * dist.get_rank()):
            ddp(batch).square().sum().backward()
            # Work between the forward pass of one step and the next.
            for _ in range(3):
                torch.ones(100_000).sum()
            optimizer.step()
            optimizer.zero_grad()
    return [parameter.detach() for parameter in ddp.parameters()]


def hooked(kind: dist.BuiltinCommHookType) -> Results:
    ddp = DistributedDataParallel(model_of(2), bucket_cap_mb=0.0005)
    ddp._register_builtin_comm_hook(kind)
    gradients = []
    for batch in inputs(3):
        ddp.zero_grad()
        ddp(batch).square().sum().backward()
        gradients += [parameter.grad.clone() for parameter in ddp.parameters()]
    return gradients


def functionals() -> Results:
    rank, size = dist.get_rank(), dist.get_world_size()
    everyone = list(range(size))
    tensor = torch.arange(12.0 * size).view(3 * size, 4) * (rank + 1)
    results = [
        functional.all_reduce(tensor, "sum", everyone),
        functional.all_reduce(tensor, "avg", everyone),
        functional.all_reduce(tensor.t(), "sum", everyone),
        functional.reduce_scatter_tensor(tensor, "sum", 0, everyone),
        functional.reduce_scatter_tensor(tensor, "avg", 0, everyone),
        *functional.all_reduce_coalesced([tensor, tensor[:2]], "sum", everyone),
        *functional.reduce_scatter_tensor_coalesced([tensor, tensor], "sum", [0, 0], everyone),
    ]
    return [result + 0 for result in results]  # what waits


def in_flight() -> Results:
    """Works that Python drops, and C++ alone keeps."""
    given = torch.arange(400_000.0 * dist.get_world_size()) * (dist.get_rank() + 1)
    tensor, share = given.clone(), torch.empty(400_000)
    if dist.get_rank() == 1:
        time.sleep(0.2)  # else who does not wait may find the sums all the same
    with functional.allow_inflight_collective_as_graph_input_ctx():
        dist.all_reduce(tensor, async_op=True)
        dist.reduce_scatter_tensor(share, given, async_op=True)
    return [torch.ops._c10d_functional.wait_tensor(each).clone() for each in (tensor, share)]


def unfinished() -> Results:
    """Results of functional collectives that nobody has waited for, and DTensors."""
    size = dist.get_world_size()
    tensors = [
        functional.all_reduce(torch.arange(float(count)), "sum", list(range(size)))
        for count in (60 * size, 90_000 * size)
    ]
    for tensor in tensors:
        dist.all_reduce(tensor)
    dist.reduce_scatter_tensor(share := torch.empty(90_000), tensors[1])
    mesh = init_device_mesh("cpu", (size,))
    try:
        dist.all_reduce(DTensor.from_local(torch.ones(90_000), mesh, [Replicate()]))
        refused = 0.0
    except Exception:
        refused = 1.0
    return [*(tensor + 0 for tensor in tensors), share, torch.tensor(refused)]


def sharded() -> Results:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    rows = torch.arange(40.0 * mesh.size()).view(-1, 8) * (dist.get_rank() + 1)
    partial = DTensor.from_local(rows, mesh, [Partial()])
    average = DTensor.from_local(rows, mesh, [Partial("avg")])
    return [
        partial.redistribute(mesh, [Replicate()]).to_local(),
        partial.redistribute(mesh, [Shard(0)]).to_local(),
        average.redistribute(mesh, [Replicate()]).to_local(),
        partial.full_tensor(),
        DTensor.from_local(rows, mesh, [Shard(0)]).sum().full_tensor(),
    ]


def compiled() -> Results:
    """Collectives that torch.compile does not trace."""

    @torch.compile(backend="eager")
    def step(x: torch.Tensor) -> torch.Tensor:
        doubled, share = x * 2, torch.empty(len(x) // dist.get_world_size())
        dist.broadcast(doubled, 1)
        dist.reduce_scatter_tensor(share, x, async_op=True).wait()
        dist.all_reduce(x, async_op=True).wait()
        return torch.cat([x + doubled, share])

    return [step(torch.arange(60_000.0) * (dist.get_rank() + 1))]


CASES: dict[str, Callable[[], Results]] = {
    "join": lambda: joined(zero=False, static=False),
    "join static": lambda: joined(zero=False, static=True),
    "zero": lambda: joined(zero=True, static=False),
    "halves": lambda: hooked(dist.BuiltinCommHookType.FP16_COMPRESS),
    "allreduce": lambda: hooked(dist.BuiltinCommHookType.ALLREDUCE),
    "functional": functionals,
    "in flight": in_flight,
    "unfinished": unfinished,
    "sharded": sharded,
    "compiled": compiled,
}
names = sys.argv[1:] or list(CASES)


def run_all() -> list[Results]:
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    results = []
    for name in names:
        results.append(CASES[name]())
        dist.barrier()
    dist.destroy_process_group()
    return results


plain = run_all()

import omnihvd.torch  # noqa: E402  from here on process groups are omnihvd's

os.environ["MASTER_PORT"] = os.environ["LATER_PORT"]
for name, ours, theirs in zip(names, run_all(), plain):
    # Sums in float16 round in another order than Gloo's.
    within = {"rtol": 2**-9, "atol": 2**-9} if name == "halves" else {}
    torch.testing.assert_close(ours, theirs, msg=lambda why, name=name: f"{name}: {why}", **within)
figures = omnihvd.stats()
assert figures["calls"] > 0 and figures["failures"] == 0, figures
print("all well")
