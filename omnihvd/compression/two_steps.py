"""Sums of what cannot be added as it is, in two exchanges of the ranks: codes, and factors.

torch_two_steps.py and tensorflow_two_steps.py make the exchanges, by Horovod.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from omnihvd.compression import counters
from omnihvd.compression.compressor import Compressor
from omnihvd.compression.methods.low_rank import FactorSum, LowRank
from omnihvd.compression.part_sums import PartSum
from omnihvd.compression.split import ParameterState


class Ranks(NamedTuple):
    rank: int
    size: int
    averages: bool  # else it sums


class TwoSteps(Protocol):
    """One parameter's sum, in two exchanges of the ranks. The faces make the exchanges."""

    exchanges: Any  # for each, the kind ("alltoall", "allgather" or "average") and a name

    def first(self, gradient: Any) -> Any:
        """Returns an array to exchange; for "alltoall" bytes, and how many each rank gets."""

    def second(self, received: Any) -> Any:
        """Returns an array for the second exchange."""

    def result(self, received: Any) -> Any:
        """The sum or average, flat or in any shape."""


def begin(ops: Any, compressor: Compressor, state: ParameterState, ranks: Any) -> TwoSteps:
    """A sum of one parameter's gradients. ranks: a Ranks, or its like."""
    counters.note_own_sum()
    rule: Any = compressor.config.summed
    if isinstance(rule, LowRank):
        return FactorSum(rule, ops, compressor.config.error_feedback, state, ranks)
    return PartSum(rule, ops, compressor, state, ranks)
