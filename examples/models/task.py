"""The base of the models: layers, data, training, and held-out data."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

SIZES = ("tiny", "default", "full")  # of tests; for two cores; as published


class Published(NamedTuple):
    """Fei et al., "Efficient Sparse Collective Communication and its Application to Accelerate
    Distributed Deep Learning" (SIGCOMM 2021), table 1."""

    zeros: int  # per cent of a gradient's elements
    data: str


class Examples:
    """A rank's examples, with batches drawn by seed and step, and the held-out ones.

    Rows of `inputs` and `targets` belong together.
    """

    batch_size = 32  # examples of a rank
    rank, ranks = 0, 1

    def split(self, inputs: Tensor, targets: Tensor, held_out: int | tuple[Tensor, Tensor]) -> None:
        """Deals examples, the same on all ranks, to the ranks in a fixed order. held_out: how many
        of them, the last, are held out; or other examples that are."""
        order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(0))
        if isinstance(held_out, int):
            last, order = order[-held_out:], order[:-held_out]
            held_out = inputs[last], targets[last]
        self.held_out = held_out
        mine = order[self.rank :: self.ranks]
        self.inputs, self.targets = inputs[mine], targets[mine]

    def drawn(self, seed: int, step: int, count: int) -> Tensor:
        """Numbers of examples, int64, shape (count,)."""
        generator = torch.Generator().manual_seed(1_000_003 * seed + step)
        return torch.randint(len(self.inputs), (count,), generator=generator)

    def batch(self, seed: int, step: int) -> tuple[Any, Any]:
        chosen = self.drawn(seed, step, self.batch_size)
        return self.inputs[chosen], self.targets[chosen]

    def outputs(self, model: nn.Module) -> Tensor:
        """The model's outputs on the held-out data."""
        model.eval()
        with torch.no_grad():
            found = torch.cat([model(part) for part in self.held_out[0].split(256)])
        model.train()
        return found


class Task(Examples):
    """A model, its data, its training, and its held-out data.

    A subclass calls split() with all examples, and says in `source` where they are from.
    """

    published: Published
    measure = "accuracy"
    higher_is_better = True
    steps = 100  # of a training
    source = ""

    def __init__(self, data: Path | None, size: str, rank: int = 0, ranks: int = 1) -> None:
        """data: a folder (sources.py), None: what packages bring. size: one of SIZES."""
        self.data, self.size, self.rank, self.ranks = data, size, rank, ranks

    def model(self) -> nn.Module:
        """With weights drawn by torch's generator, which the caller seeds alike on all ranks."""
        raise NotImplementedError

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        raise NotImplementedError

    def rate(self, done: float) -> float:
        """The learning rate's factor when this share of the steps is done."""
        return 1.0

    def loss(self, model: nn.Module, batch: tuple[Any, Any]) -> Tensor:
        inputs, targets = batch
        return nn.functional.cross_entropy(model(inputs), targets)

    def quality(self, model: nn.Module) -> float:
        """The quality on held-out data."""
        return self.judge(self.outputs(model), self.held_out[1])

    def judge(self, outputs: Tensor, targets: Tensor) -> float:
        return float((outputs.argmax(1) == targets).float().mean())


def area_under_curve(scores: Tensor, labels: Tensor) -> float:
    """The probability that a positive example scores higher than a negative one; equal scores count
    half."""
    _, places, counts = scores.double().unique(return_inverse=True, return_counts=True)
    ranks = (counts.cumsum(0) - (counts - 1) / 2)[places]
    positive = labels > 0.5
    n = int(positive.sum())
    above = float(ranks[positive].sum()) - n * (n + 1) / 2
    return above / max(n * (len(labels) - n), 1)


def gradient_bytes(model: nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
