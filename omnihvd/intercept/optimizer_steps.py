"""Follows the steps of all PyTorch optimizers, by PyTorch's own hooks around every step."""

from __future__ import annotations

import importlib
from typing import Any, Callable


class OptimizerSteps:
    """Calls before() when an optimizer is about to apply gradients, and ended() when the first
    optimizer that ever stepped has ended a step. With Horovod, before() comes after the sums, since
    Horovod's optimizer calls the real step inside its own. optimizers: all that were seen."""

    def __init__(self, before: Callable[[], None], ended: Callable[[], None]) -> None:
        self.optimizers: list[Any] = []
        self._before, self._ended = before, ended
        self._depth = 0
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
        if self._depth == 0 and not any(optimizer is known for known in self.optimizers):
            self.optimizers.append(optimizer)
        self._depth += 1
        self._before()

    def _on_after(self, optimizer: Any, *_: Any) -> None:
        self._depth = max(0, self._depth - 1)
        if self._depth == 0 and self.optimizers and optimizer is self.optimizers[0]:
            self._ended()
