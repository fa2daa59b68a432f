"""The training loop, with gradients summed by Horovod (worker.py) or DDP (ddp.py)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from task import Task
from torch import nn

LINK = Path("/sys/class/net/eth0/statistics/tx_bytes")


@dataclass
class Trained:
    """The results of a training. losses: this rank's; seconds of each step; `waits`: the part of
    them that waits for sums after the backward pass; curve: [step, quality on held-out data], on
    rank 0; reached_s: the seconds of all steps before each point of it."""

    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    curve: list[list[float]] = field(default_factory=list)
    reached_s: list[float] = field(default_factory=list)


def drawn_model(task: Task, seed: int) -> nn.Module:
    """The same weights on all ranks; what is drawn later (dropout) is each rank's own."""
    torch.manual_seed(seed)
    model = task.model()
    torch.manual_seed(1000 * (seed + 1) + task.rank)
    return model


def train(
    task: Task,
    model: nn.Module,
    optimizer: Any,
    wait: Callable[[], None],
    seed: int,
    steps: int,
    points: int = 0,
    tell: Callable[[int, float], None] = lambda step, loss: None,
    forward: nn.Module | None = None,
) -> Trained:
    """wait: waits for sums, before the optimizer's step. points: of the curve; the last is the end.
    forward: is called in the model's place (DDP)."""
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: task.rate(n / steps))
    trained = Trained()
    for step in range(steps):
        batch = task.batch(seed, step)
        start = time.perf_counter()
        optimizer.zero_grad()
        loss = task.loss(forward or model, batch)
        loss.backward()
        computed = time.perf_counter()
        wait()
        summed = time.perf_counter()
        optimizer.step()
        trained.losses.append(loss.item())
        end = time.perf_counter()
        schedule.step()
        trained.seconds.append(end - start)
        trained.waits.append(summed - computed)
        tell(step + 1, trained.losses[-1])
        if points and (step + 1) * points // steps > step * points // steps and task.rank == 0:
            trained.curve.append([step + 1, task.quality(model)])
            trained.reached_s.append(sum(trained.seconds))
    return trained


def sent() -> int:
    """Bytes by this host; 0 where it has no link that could be read."""
    return int(LINK.read_text()) if LINK.exists() else 0
