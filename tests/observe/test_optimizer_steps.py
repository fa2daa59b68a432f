"""Steps of optimizers are counted, also after one has raised, and if one is inside another."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from omnihvd.intercept.optimizer_steps import OptimizerSteps  # noqa: E402
from omnihvd.torch import StatsWriter  # noqa: E402


class Fails(torch.optim.SGD):
    """Every second step raises."""

    steps = 0

    def step(self, closure: Any = None) -> Any:
        self.steps += 1
        if self.steps % 2 == 0:
            raise RuntimeError("a rank has died")
        return super().step(closure)


class Within(torch.optim.SGD):
    """Calls a step inside its own, as Horovod's does."""

    def step(self, closure: Any = None) -> Any:
        return torch.optim.SGD.step(self, closure)


def steps(kind: type[torch.optim.SGD], count: int) -> tuple[int, int]:
    """How many of them did not raise, and how many were counted."""
    parameter = torch.nn.Parameter(torch.zeros(3))
    optimizer = kind([parameter], lr=0.1)
    counted: list[str] = []
    followed = OptimizerSteps(lambda: None, lambda: counted.append("ended"))
    writer = StatsWriter(None, optimizer)
    done = 0
    try:
        for _ in range(count):
            parameter.grad = torch.ones(3)
            try:
                optimizer.step()
                done += 1
            except RuntimeError:
                pass
    finally:
        followed.close()
        writer.close()
    assert writer._step == len(counted)
    return done, len(counted)


def test_a_step_that_raises_is_not_counted_and_the_later_ones_are() -> None:
    assert steps(Fails, 9) == (5, 5)


def test_a_step_inside_another_counts_once() -> None:
    assert steps(Within, 4) == (4, 4)
