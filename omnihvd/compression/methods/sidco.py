"""SIDCo: Abdelmoniem et al., "An efficient statistical-based gradient compression technique for
distributed training systems" (MLSys 2021).

The threshold follows from the moments of the absolute values, under an assumed sparsity-inducing
distribution: O(n), without a sort or a sample. The tail deviates from the distribution, so the fit
goes in stages. The first stage leaves FIRST of the elements; each later stage fits their excess
over the threshold so far. After each WINDOW of steps there is one stage less, if too many elements
were sent, or one more.

Differences from the paper:

- Zero elements are not fitted; nearly all elements of an embedding's gradient are zero.
- Stages are adapted for each parameter, not for all together.
- Unless `as_published`, the share that a fit aims at is corrected by the share that it achieved
  (`gains`), because whole stages are too coarse; and a threshold that is off by more than TOLERANCE
  is corrected at once. Error feedback needs both: residuals grow together until no distribution
  fits, and whole layers pass a threshold in one step and none in the next.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from omnihvd.compression import counters
from omnihvd.compression.arrays import np
from omnihvd.compression.methods.moments import exceedance, mean_log
from omnihvd.compression.methods.top_elements import exact_limit
from omnihvd.compression.rules import Call, ThresholdRule

DISTRIBUTIONS = ("exponential", "gamma", "pareto")
FIRST = 0.25  # the share that the first of several stages leaves
WINDOW = 5  # steps after which the number of stages is adapted
TOLERANCE = 0.2
ROUNDS = 8  # of correction, at most
MOST_STAGES = 16
DAMPING = 0.3  # of the gains: the achieved share may react more than in proportion
SMALL = 4096  # elements: for fewer, the exact threshold is as fast


@dataclass(frozen=True)
class Sidco(ThresholdRule):
    """About the `ratio` of elements with the largest absolute values."""

    factory = "sidco"
    adjustable = True
    selects = True
    learns = True
    ratio: float
    distribution: str
    as_published: bool

    def memory(self, name: str, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
        # stages; over the window: steps, achieved / wanted; in this step: how many the fit keeps
        return {"fit": np.array([1.0, 0.0, 0.0, 0.0]), "gains": np.ones(MOST_STAGES)}

    def limit(self, total: Any, call: Call) -> float:
        if call.parts <= SMALL:
            return exact_limit(total, call)
        ops, (stages, _, _, _) = call.ops, call.memory["fit"].tolist()
        gain = 1.0 if self.as_published else float(call.memory["gains"][int(stages) - 1])
        moments = exceedance(ops, total, 0.0)
        if not math.isfinite(moments[1]):
            return math.nan
        share = gain * call.count / max(moments[0], 1.0)
        limit = self.fit(ops, total, moments, share, int(stages))
        if self.as_published:
            return limit
        kept, sums, _ = exceedance(ops, total, limit)
        call.memory["fit"][3] = kept
        return self._corrected(limit, kept, sums, total, call)

    def fit(
        self, ops: Any, total: Any, moments: tuple[float, ...], share: float, stages: int
    ) -> float:
        """The threshold that `share` of the elements exceed, by `stages` stages of the fit alone
        (section 2.4). moments: exceedance(total, 0)."""
        if not share < 1:
            return 0.0
        if stages == 1 or share >= FIRST:
            return self._exceeded_by(ops, share, moments, total)
        limit = self._exceeded_by(ops, FIRST, moments, total)
        rest = (share / FIRST) ** (1 / (stages - 1))
        for _ in range(stages - 1):
            limit += self._exceeded_by(ops, rest, exceedance(ops, total, limit))
        return limit

    def _corrected(self, limit: float, kept: float, sums: float, total: Any, call: Call) -> float:
        """Corrects a threshold that too many elements exceed by another stage of the exponential
        fit. One that too few exceed, or an overshoot, it corrects by bisection between limits known
        to keep too many and too few. kept, sums: how many exceed it, and by how much in all."""
        wanted, low, high, tries = call.count, 0.0, math.inf, 0
        while abs(kept - wanted) > 0.9 * TOLERANCE * wanted and tries < ROUNDS:
            if kept > wanted:
                low = limit
                limit += sums / kept * math.log(kept / wanted)
                limit = limit if limit < high else (low + high) / 2
            elif limit > low:
                high = limit
                limit = (low + high) / 2
            else:  # there are no more elements
                break
            kept, sums, _ = exceedance(call.ops, total, limit)
            tries += 1
        counters.add(rounds=tries)
        return limit

    def learn(self, kept: float, call: Call) -> None:
        if call.parts <= SMALL:
            return
        stages, steps, total, fitted = call.memory["fit"].tolist()
        achieved = (kept if self.as_published else fitted) / call.count
        gains, at = call.memory["gains"], int(stages) - 1
        better = float(gains[at]) * min(max(achieved, 1 / 8), 8.0) ** -DAMPING
        gains[at] = min(max(better, 1e-3), 1e3)

        steps, total = steps + 1, total + achieved
        if steps >= WINDOW:
            mean, most = total / steps, math.ceil(math.log2(1 / call.ratio))
            most = min(max(most, 1), MOST_STAGES)
            if mean > 1 + TOLERANCE and achieved > 1 + TOLERANCE:
                stages = stages - 1 if stages > 1 else 2  # at a bound, the other direction
            elif mean < 1 - TOLERANCE and achieved < 1 - TOLERANCE:
                stages = stages + 1 if stages < most else most - 1
            stages, steps, total = min(max(stages, 1), most), 0, 0
        for i, value in enumerate((stages, steps, total)):
            call.memory["fit"][i] = value

    def _exceeded_by(
        self, ops: Any, share: float, moments: tuple[float, ...], total: Any = None
    ) -> float:
        """The threshold that `share` of the elements exceed, from their number, sum and sum of
        squares; 0 if they are too few or all alike. total: the elements, in the first stage."""
        count, sums, squares = moments
        if not sums > 0:
            return 0.0
        count = max(count, 1.0)
        mean, wanted = sums / count, -math.log(min(share, 1.0))
        if self.distribution == "exponential":
            return mean * wanted
        if self.distribution == "gamma" and total is not None:
            s = max(math.log(mean) - mean_log(ops, total), 1e-6)
            shape = (3 - s + math.sqrt((s - 3) ** 2 + 24 * s)) / (12 * s)
            return max(0.0, mean / shape * (wanted - math.lgamma(shape)))
        spread = max(squares / count - mean * mean, 1e-12 * mean * mean)
        over = min(mean * mean / spread, 1e6)
        shape, scale = (over - 1) / 2, mean * (over + 1) / 2
        if abs(shape) < 1e-4:
            return mean * wanted
        return scale * (1 - math.exp(-shape * wanted)) / shape
