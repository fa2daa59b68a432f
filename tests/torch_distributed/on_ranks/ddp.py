"""On each rank: gradients under DDP, against those that each rank works out for all ranks. The
arguments: how DDP sums, and the ranks' process group."""

from __future__ import annotations

import copy
import functools
import pickle
import sys
from datetime import timedelta
from typing import Callable

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_wrapper
from torch.nn.parallel import DistributedDataParallel

how, backend = sys.argv[1:]
if backend == "omnihvd":
    import omnihvd.torch
dist.init_process_group(backend, timeout=timedelta(seconds=30))
import omnihvd.torch  # noqa: E402, after that it leaves a group on Gloo alone
from omnihvd.compression import Compressor, block_random, torch_ops  # noqa: E402
from omnihvd.compression.split import ParameterState, split  # noqa: E402

rank, size = dist.get_rank(), dist.get_world_size()
WORDS, WIDTH, STEPS = 1501, 67, 3


class Model(torch.nn.Module):
    """Its gradients are small multiples of 1/8: sums are exact in any order."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(WORDS, WIDTH, sparse=sparse)
        self.other = torch.nn.Embedding(WORDS, WIDTH, sparse=sparse)
        self.layer = torch.nn.Linear(WIDTH, 1200)
        self.unused = torch.nn.Parameter(torch.ones(70_001))
        with torch.no_grad():
            for number, parameter in enumerate(self.parameters()):
                index = torch.arange(parameter.numel()) + number
                parameter.copy_((index % 5 / 8).view_as(parameter))

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        # Not one gradient for two tables: if sparse, DDP alone divides it twice.
        features = self.table(words) + 2 * self.other(words % 7) + self.unused[0]
        return self.layer(features).sum() / 16  # not too much for halves


def words(rank: int, step: int) -> torch.Tensor:
    return torch.tensor([rank, 2 * rank + step, 1000 + step, 1000 + step])


def gradients(model: torch.nn.Module, rank: int, step: int) -> list[torch.Tensor]:
    """One rank's alone."""
    alone = copy.deepcopy(model)
    alone(words(rank, step)).backward()
    return [p.grad.to_dense() for p in alone.parameters()]


def averages(model: torch.nn.Module, step: int) -> list[torch.Tensor]:
    each = [gradients(model, r, step) for r in range(size)]
    return [torch.stack(of_all).sum(0) / size for of_all in zip(*each)]


def train(model: Model, ddp: DistributedDataParallel, expected: Callable, close: float) -> None:
    for step in range(STEPS):  # after the first one buckets are made anew
        ddp.zero_grad()
        ddp(words(rank, step)).backward()
        for p, want in zip(model.parameters(), expected(model, step)):
            torch.testing.assert_close(p.grad.to_dense(), want, rtol=close, atol=20 * close)


def wrapped(sparse: bool = False) -> tuple[Model, DistributedDataParallel]:
    model = Model(sparse)
    return model, DistributedDataParallel(model, bucket_cap_mb=0.4)


def of_compressor(compressor: Compressor, model: Model) -> Callable[..., torch.Tensor]:
    """Compresses gradients of one rank, apart from DDP."""
    states = {name: ParameterState(name) for name, _ in model.named_parameters()}

    def compress(name: str, gradient: torch.Tensor) -> torch.Tensor:
        config = compressor.config
        return split(torch_ops, gradient.clone(), states[name], config, config.rule.ratio)

    return compress


def compressed_averages(reference: list[Callable], model: Model, step: int) -> list[torch.Tensor]:
    names = [name for name, _ in model.named_parameters()]
    each = [map(reference[r], names, gradients(model, r, step)) for r in range(size)]
    return [torch.stack(of_all).sum(0) / size for of_all in zip(*each)]


before = omnihvd.Statistics()
for sparse in (False, True):
    model, ddp = wrapped(sparse)
    if how == "hooks":
        state = None
        if sparse:
            state = omnihvd.torch.HookState(dist.new_group(list(range(size))))
            assert pickle.loads(pickle.dumps(state)).process_group is None
        ddp.register_comm_hook(state, omnihvd.torch.allreduce_hook)
    train(model, ddp, averages, 1e-6)
figures = before.read()
assert figures["sparse"]["gradients"] == 2 * STEPS
assert figures["passed_share"] == 0  # all buckets are taken, be they many or few
assert sum(way["calls"] for way in figures["ways"].values()) >= 2 * STEPS, figures

if how == "hooks":
    model, ddp = wrapped()
    ddp.register_comm_hook(None, fp16_compress_wrapper(omnihvd.torch.allreduce_hook))
    train(model, ddp, averages, 2e-3)

    ours = omnihvd.torch.compressed_allreduce_hook
    for hook, close in ((ours, 1e-6), (fp16_compress_wrapper(ours), 5e-3)):
        compressor = block_random(0.3, block_size=64).with_momentum_correction(0.5)
        model, ddp = wrapped()
        state = omnihvd.torch.CompressionState(compressor, model.named_parameters())
        reference = [of_compressor(compressor, model) for _ in range(size)]
        ddp.register_comm_hook(state, hook)
        train(model, ddp, functools.partial(compressed_averages, reference), close)
        # From a checkpoint.
        state = pickle.loads(pickle.dumps(state))
        ddp = DistributedDataParallel(model, bucket_cap_mb=0.4)
        ddp.register_comm_hook(state, hook)
        try:
            ddp(words(rank, 0)).backward()
            raise SystemExit("what was unpickled knows parameters")
        except RuntimeError as why:
            assert "attach()" in str(why), why
        ddp = DistributedDataParallel(model, bucket_cap_mb=0.4)
        state.attach(model.named_parameters())
        ddp.register_comm_hook(state, hook)
        train(model, ddp, functools.partial(compressed_averages, reference), close)

dist.barrier()
dist.destroy_process_group()
print("all well")
