"""Global Top-k: one threshold for all parameters, from a histogram of their last values. It has the
least error for a number of elements in a step, as one constant threshold has it for a number in a
training (Sahu et al., "Rethinking gradient sparsification as total error minimization", NeurIPS
2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from omnihvd.compression.arrays import np
from omnihvd.compression.rules import Call, ThresholdRule

SAMPLE = 1 << 15  # elements of a parameter; at most twice as many are looked at
FINITE = 255 << 3  # bins, by a float32's exponent and 3 bits of its fraction; NaN lie above


class Levels:
    """How the magnitudes of all parameters' last values, residual included, are distributed."""

    def __init__(self) -> None:
        self._counts: dict[int, Any] = {}  # by parameter
        self._seen: set[int] = set()  # parameters, in this step
        self._all: Any = None  # of the step before

    def put(self, parameter: int, counts: Any) -> Any:
        """Returns the counts of all parameters in the step before; in the first, this one's."""
        if parameter in self._seen:  # the next step begins
            self._all = sum(self._counts.values())
            self._seen.clear()
        self._seen.add(parameter)
        self._counts[parameter] = counts
        return counts if self._all is None else self._all


@dataclass(frozen=True)
class GlobalElements(ThresholdRule):
    """The `ratio` of all parameters' elements with the largest absolute values."""

    factory = "global_topk"
    adjustable = True
    selects = True
    ratio: float

    def together(self) -> Levels:
        return Levels()

    def limit(self, total: Any, call: Call) -> float:
        every = max(1, call.parts // SAMPLE)
        counts = every * call.ops.magnitudes(total[call.step % every :: every])
        return level(call.together.put(call.seed, counts), call.ratio)


def level(counts: Any, share: float) -> float:
    """The magnitude that a `share` of the numbers exceeds; NaN: there are none. counts: of each
    bin; inside a bin they are taken to lie evenly."""
    if share >= 1:
        return 0.0
    falling = counts[:FINITE][::-1]
    above = falling.cumsum()
    wanted = share * above[-1]
    at = int(np.searchsorted(above, wanted))  # the first with so many
    edges = np.array([FINITE - 1 - at, FINITE - at], np.int32) << 20
    low, high = edges.view(np.float32).tolist()
    inside = (above[at] - wanted) / max(falling[at], 1)  # the share of the bin that stays below
    return low + (high - low) * float(inside)
