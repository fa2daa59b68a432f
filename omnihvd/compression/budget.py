"""OMNIHVD_DELAY_BUDGET_MS: delay control for whole jobs. Their scripts know nothing of it."""

from __future__ import annotations

import functools
from typing import Any

from omnihvd import engine
from omnihvd.compression.compressor import Compressor
from omnihvd.compression.delay import DelayControl
from omnihvd.compression.factories import block_topk
from omnihvd.compression.omni_reduce import OmniReduce

MIN_RATIO = 0.001


def controlled(
    compression: Any, none: Any, op: Any, averages_or_sums: tuple[Any, ...], shared: bool = False
) -> Any:
    """Returns the compression for an optimizer of Horovod's, in place of `compression`, if there is
    a budget.

    Without compression (`none`, OmniReduce): block_topk, which begins with all blocks; shared: the
    same each time, for tapes: each step may have a new tape. A compressor that can send
    more or less gets the budget, if nothing else sets its ratio. Others stay.
    """
    budget = engine.session.settings_from_environment().delay_budget_ms
    if not budget or op not in averages_or_sums:
        return compression
    if compression is none or compression is OmniReduce:
        return _of_the_job(budget) if shared else _all_blocks(budget)
    if isinstance(compression, Compressor):
        config = compression.config
        if config.rule.adjustable and not (config.warm_up or config.delay or config.floor):
            compression.change(delay=DelayControl(float(budget), MIN_RATIO))
    return compression


def _all_blocks(budget: float) -> Compressor:
    return block_topk(1.0).with_delay_control(budget, MIN_RATIO)


_of_the_job = functools.cache(_all_blocks)
