"""Elastic jobs under PyTorch: a rank that joins learns how many steps there have been.

A rank keeps its residuals, and Horovod restores them with the optimizer. But the choice of random
blocks and the warm-up follow from the number of steps, which must be the same on all ranks.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from omnihvd.compression.torch_horovod import states_of


def install(state: ModuleType) -> None:
    """Makes horovod.torch.elastic.state broadcast rank 0's steps when ranks have changed."""
    sync = state.OptimizerStateHandler.sync

    @functools.wraps(sync)
    def sync_steps_too(self: Any) -> None:
        from horovod.torch.functions import broadcast_object

        sync(self)
        states = sorted(states_of(self.value), key=lambda state: state.name)
        if states:
            steps = broadcast_object([state.step for state in states], name="omnihvd.steps")
            for state, step in zip(states, steps):
                state.step = step

    state.OptimizerStateHandler.sync = sync_steps_too
