"""Follows the steps of all PyTorch optimizers, by PyTorch's own hooks around every step."""

from __future__ import annotations

import importlib
import sys
from types import FrameType
from typing import Any, Callable


class Nesting:
    """How deep steps are nested: Horovod's optimizer calls a step inside its own. PyTorch calls no
    post-hook of a step that raises, as in elastic jobs, so steps that no longer run are dropped."""

    def __init__(self) -> None:
        self._steps: list[FrameType] = []  # of PyTorch's wrapper around step()

    def begin(self) -> int:
        """For a pre-hook. Returns how many steps are around this one."""
        step = sys._getframe(2)
        while self._steps and not _runs_in(self._steps[-1], step):
            self._steps.pop()
        self._steps.append(step)
        return len(self._steps) - 1

    def end(self) -> int:
        """The same for a post-hook."""
        if self._steps:
            self._steps.pop()
        return len(self._steps)


def _runs_in(caller: FrameType, frame: FrameType | None) -> bool:
    while frame is not None and frame is not caller:
        frame = frame.f_back
    return frame is not None


class OptimizerSteps:
    """Calls before() when an optimizer is about to apply gradients, and ended() when the first
    optimizer that ever stepped has ended a step. With Horovod, before() comes after the sums, since
    Horovod's optimizer calls the real step inside its own. optimizers: all that were seen."""

    def __init__(self, before: Callable[[], None], ended: Callable[[], None]) -> None:
        self.optimizers: list[Any] = []
        self._before, self._ended = before, ended
        self._nesting = Nesting()
        module = importlib.import_module("torch.optim.optimizer")
        self._handles = [
            module.register_optimizer_step_pre_hook(self._on_before),
            module.register_optimizer_step_post_hook(self._on_after),
        ]

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()

    def parameters(self) -> list[Any]:
        groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]
        return list({id(p): p for group in groups for p in group["params"]}.values())

    def _on_before(self, optimizer: Any, *_: Any) -> None:
        outermost = self._nesting.begin() == 0
        if outermost and not any(optimizer is known for known in self.optimizers):
            self.optimizers.append(optimizer)
        self._before()

    def _on_after(self, optimizer: Any, *_: Any) -> None:
        if self._nesting.end() == 0 and self.optimizers and optimizer is self.optimizers[0]:
            self._ended()
