"""On each rank: a model is trained, its gradients summed by ncclAllReduce as DDP does, or as
Horovod. The word chooses. On two ranks every sum has one order: the weights have the bits of those
that Gloo's sums give."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.nn
from gpu_rank import *
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import omnihvd

STEPS = 3 if sys.argv[1] == "ddp" else 70  # plans follow 64 sums later
ROWS, WIDTH = 300, 64
FUSED = 40_000  # elements of a buffer, at most
Summed = Callable[[torch.Tensor], torch.futures.Future]


class Gpu:
    """Sums tensors by ncclAllReduce on a stream of its own, several under way at once."""

    def __init__(self) -> None:
        use_device()
        self.stream, self.comm = Stream(), Communicator("all")
        self.finalizer = ThreadPoolExecutor(1, initializer=use_device)

    def summed(self, tensor: torch.Tensor) -> torch.futures.Future:
        future: torch.futures.Future = torch.futures.Future()
        x = Array(tensor.numpy())
        assert self.comm.allreduce(self.stream, x, x, "float32") == SUCCESS

        def finish() -> None:
            self.stream.wait()
            assert self.comm.async_error() == SUCCESS
            tensor.copy_(torch.from_numpy(x.host))
            future.set_result(tensor)

        self.finalizer.submit(finish)
        return future


def make_model() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Embedding(ROWS, WIDTH), nn.Flatten(), nn.Linear(4 * WIDTH, 200))


def loss_of(model: nn.Module, step: int) -> torch.Tensor:
    rows = torch.from_numpy(np.random.default_rng([step, RANK]).integers(0, ROWS, (6, 4)))
    return nn.functional.cross_entropy(model(rows), rows[:, 0] % 200)


def train(model: nn.Module, average: Callable[[], None]) -> list[torch.Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        average()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def ddp(summed: Summed | None) -> list[torch.Tensor]:
    """Buckets are divided, and summed one after another while the backward pass goes on."""
    model = DistributedDataParallel(make_model(), bucket_cap_mb=0.05)
    if summed is not None:

        def hook(_, bucket):
            return summed(bucket.buffer().div_(SIZE))

        model.register_comm_hook(None, hook)
    return train(model, lambda: None)


def horovod(summed: Summed | None) -> list[torch.Tensor]:
    """Gradients are fused on a thread in the background; it divides what it was given back. The
    sizes of the buffers differ from step to step."""
    model = make_model()
    steps = itertools.count()

    def sum_fused(gradients: list[torch.Tensor]) -> None:
        fused = torch.cat([g.reshape(-1) for g in gradients])
        if summed is None:
            dist.all_reduce(fused)
        else:
            summed(fused).wait()
        fused.div_(SIZE)
        for g, part in zip(gradients, fused.split([g.numel() for g in gradients])):
            g.copy_(part.view_as(g))

    def cycle() -> None:
        waiting = [p.grad for p in reversed(list(model.parameters()))]
        fused: list[torch.Tensor] = []
        most = FUSED * (next(steps) % 4 + 1) // 2
        for g in waiting:
            if fused and sum(f.numel() for f in fused) + g.numel() > most:
                sum_fused(fused)
                fused = []
            fused.append(g)
        sum_fused(fused)

    with ThreadPoolExecutor(1, initializer=use_device) as background:
        return train(model, lambda: background.submit(cycle).result())


store = dist.FileStore(str(FOLDER / "store"), SIZE)
dist.init_process_group("gloo", store=store, rank=RANK, world_size=SIZE)
job = {"ddp": ddp, "horovod": horovod}[sys.argv[1]]
gpu = Gpu()
ours = job(gpu.summed)
stats = omnihvd.stats()
assert stats["calls"] >= STEPS and stats["nonzero_blocks"] < stats["blocks"], stats
calls = {way: of["calls"] for way, of in stats["ways"].items()}
assert calls["union"] >= STEPS, calls
assert calls["union"] + calls["original"] == stats["calls"], calls
for mine, reference in zip(ours, job(None)):
    assert torch.equal(mine, reference), "trained to other weights than by Gloo"
gpu.comm.destroy()
dist.destroy_process_group()
print("all well")
