"""On each rank: a model is trained by DDP with union_hook, or by FSDP2 with scatter_unions, and has
the losses that it has without. The words: "ddp" or "fsdp", and the device."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import omnihvd.torch

what, device = sys.argv[1:]
if device == "cuda":
    torch.cuda.set_device(0)
dist.init_process_group({"cuda": "nccl", "cpu": "gloo"}[device])
rank, size, ROWS = dist.get_rank(), dist.get_world_size(), 60_000


def train(unions: bool) -> list[float]:
    torch.manual_seed(1)
    layers = torch.nn.Embedding(ROWS, 16), torch.nn.Flatten(), torch.nn.Linear(8 * 16, 4)
    model = torch.nn.Sequential(*layers).to(device)
    if what == "fsdp":
        fully_shard(model, mesh=init_device_mesh(device, (size,)))
        if unions:
            omnihvd.torch.scatter_unions(model, least_bytes=1)
            counted = model._get_fsdp_state()._fsdp_param_group._reduce_scatter_comm
    else:
        model = DistributedDataParallel(model)
        counted = omnihvd.torch.UnionState(least_bytes=1)
        if unions:
            model.register_comm_hook(counted, omnihvd.torch.union_hook)
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    random, losses = torch.Generator().manual_seed(rank), []
    for _ in range(5):
        rows = torch.randint(0, ROWS, (6, 8), generator=random).to(device)
        loss = torch.nn.functional.cross_entropy(model(rows), rows[:, 0] % 4)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    if unions:
        assert 0 < counted.summed < 0.2 * counted.elements, vars(counted)
    return losses


torch.testing.assert_close(torch.tensor(train(True)), torch.tensor(train(False)))
dist.destroy_process_group()
print("all well", flush=True)
