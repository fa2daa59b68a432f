"""On each rank: the same training under FSDP2 on Gloo, first without omnihvd, then with it.

argv: how many replicas the ranks hold; more than one: HSDP. "unions": scatter_unions() in place of
omnihvd's own sums."""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

ROWS, STEPS = 60_000, 4


def train(replicas: int, unions: bool = False) -> list[float]:
    """The losses of this rank."""
    dist.init_process_group("gloo")
    ranks = dist.get_world_size()
    if replicas > 1:
        mesh = init_device_mesh(
            "cpu", (replicas, ranks // replicas), mesh_dim_names=("replicate", "shard")
        )
    else:
        mesh = init_device_mesh("cpu", (ranks,))
    torch.manual_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Embedding(ROWS, 16), torch.nn.Flatten(), torch.nn.Linear(8 * 16, 4)
    )
    fully_shard(model, mesh=mesh)
    if unions:
        omnihvd.torch.scatter_unions(model, least_bytes=1)
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    random = torch.Generator().manual_seed(dist.get_rank())
    losses = []
    for _ in range(STEPS):
        rows = torch.randint(0, ROWS, (6, 8), generator=random)
        loss = torch.nn.functional.cross_entropy(model(rows), rows[:, 0] % 4)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    if unions:
        scatter = model._get_fsdp_state()._fsdp_param_group._reduce_scatter_comm
        assert 0 < scatter.summed < 0.2 * scatter.elements, vars(scatter)
    dist.destroy_process_group()
    return losses


replicas = int(sys.argv[1])
plain = train(replicas)

import omnihvd.torch  # noqa: E402  from here on process groups are omnihvd's

os.environ["MASTER_PORT"] = os.environ["LATER_PORT"]
unions = sys.argv[2:] == ["unions"]
losses = train(replicas, unions)
assert losses == plain, (losses, plain)
if unions:
    print("all well")
    sys.exit()
figures = omnihvd.stats()
calls = STEPS * (2 if replicas > 1 else 1)  # the shares of replicas are summed, too
assert figures["calls"] == calls, figures
assert figures["failures"] == 0 and 0 < figures["sent_of_ring"] < 0.1, figures
print("all well")
