"""Elastic jobs under PyTorch: a rank that joins learns how many steps there have been.

What is unsent stays with its rank, and Horovod restores it with the optimizer. But the choice of
random blocks and the warm-up follow from the number of steps, which has to be the same everywhere.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any, Callable

from omnihvd.compressors.torch_split import ParameterState

StatesOf = Callable[[Any], Iterable[ParameterState]]  # of an optimizer


def install(states_of: StatesOf) -> None:
    """Has Horovod's state of an optimizer give all ranks rank 0's steps when ranks have changed."""
    from horovod.torch.elastic.state import OptimizerStateHandler
    from horovod.torch.functions import broadcast_object

    sync = OptimizerStateHandler.sync

    @functools.wraps(sync)
    def sync_steps_too(self: Any) -> None:
        sync(self)
        states = sorted(states_of(self.value), key=lambda state: state.name)
        if states:
            steps = broadcast_object([state.step for state in states], name="omnihvd.steps")
            for state, step in zip(states, steps):
                state.step = step

    OptimizerStateHandler.sync = sync_steps_too
