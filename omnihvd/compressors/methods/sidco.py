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
from typing import TYPE_CHECKING, Any

from omnihvd.compressors.methods.top_elements import BELOW
from omnihvd.compressors.rules import Call, ThresholdRule

if TYPE_CHECKING:
    import numpy as np

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
        import numpy as np

        # stages; over the window: steps, achieved / wanted; in this step: how many the fit keeps
        return {"fit": np.array([1.0, 0.0, 0.0, 0.0]), "gains": np.ones(MOST_STAGES)}

    def limit(self, total: Any, call: Call) -> Any:
        ops = call.ops
        if call.elements <= SMALL:
            return BELOW * ops.kth_largest(ops.abs(total), call.count)
        stages, steps, achieved, _ = ops.numbers(call.memory["fit"], 4)
        gain = 1.0 if self.as_published else ops.element(call.memory["gains"], stages - 1)
        moments = ops.exceedance(total, ops.number(0))
        share = gain * call.count / ops.maximum(moments[0], 1.0)
        share = ops.where(call.count < call.elements, share, 1.0)
        limit = self.fit(ops, total, moments, share, stages)
        if self.as_published:
            return limit
        kept, sums, _ = ops.exceedance(total, limit)
        call.memory["fit"] = ops.pack(stages, steps, achieved, kept)
        return self._corrected(limit, kept, sums, total, call)

    def fit(self, ops: Any, total: Any, moments: Any, share: Any, stages: Any) -> Any:
        """The threshold that `share` of the elements exceed, by `stages` stages of the fit alone
        (section 2.4). moments: ops.exceedance(total, 0)."""
        several = ops.both(stages > 1, share < FIRST)
        first = ops.where(several, FIRST, share)
        rest = ops.exp(ops.log(share / first) / ops.maximum(stages - 1, 1.0))

        def more(stage: Any, _: Any) -> Any:
            return ops.both(stage < stages, several)

        def next_stage(stage: Any, limit: Any) -> tuple[Any, Any]:
            return stage + 1, limit + self._exceeded_by(ops, rest, ops.exceedance(total, limit))

        start = (ops.number(1), self._exceeded_by(ops, first, moments, total))
        return ops.where(share < 1, ops.loop(more, next_stage, start)[1], 0.0)

    def _corrected(self, limit: Any, kept: Any, sums: Any, total: Any, call: Call) -> Any:
        """Corrects a threshold that too many elements exceed by another stage of the exponential
        fit. One that too few exceed, or an overshoot, it corrects by bisection between limits known
        to keep too many and too few. kept, sums: how many exceed it, and by how much in all."""
        ops, wanted = call.ops, call.count

        def far(tries: Any, limit: Any, low: Any, high: Any, kept: Any, sums: Any) -> Any:
            off = ops.magnitude(kept - wanted) > 0.9 * TOLERANCE * wanted
            room = ops.where(kept > wanted, 1.0, limit - low)  # else there are no more elements
            return ops.both(ops.both(off, room > 0), tries < ROUNDS)

        def again(
            tries: Any, limit: Any, low: Any, high: Any, kept: Any, sums: Any
        ) -> tuple[Any, ...]:
            over = kept > wanted
            low, high = ops.where(over, limit, low), ops.where(over, high, limit)
            count = ops.maximum(kept, 1.0)
            stage = limit + sums / count * ops.log(count / wanted)
            limit = ops.where(ops.both(over, stage < high), stage, (low + high) / 2)
            kept, sums, _ = ops.exceedance(total, limit)
            return tries + 1, limit, low, high, kept, sums

        first = (ops.number(0), limit, ops.number(0), ops.number(math.inf), kept, sums)
        rounds, limit, *_ = ops.loop(far, again, first)
        ops.count_rounds(rounds)
        return limit

    def learn(self, kept: Any, call: Call) -> None:
        ops = call.ops
        if call.elements <= SMALL:
            return
        stages, steps, total, fitted = ops.numbers(call.memory["fit"], 4)
        achieved = (kept if self.as_published else fitted) / call.count
        gains, error = call.memory["gains"], ops.log(ops.clip(achieved, 1 / 8, 8.0))
        better = ops.element(gains, stages - 1) * ops.exp(-DAMPING * error)
        call.memory["gains"] = ops.with_element(gains, stages - 1, ops.clip(better, 1e-3, 1e3))

        steps, total = steps + 1, total + achieved
        full, mean = steps >= WINDOW, total / steps
        over = ops.both(mean > 1 + TOLERANCE, achieved > 1 + TOLERANCE)
        under = ops.both(mean < 1 - TOLERANCE, achieved < 1 - TOLERANCE)
        most = ops.clip(ops.ceil(ops.log(1 / call.ratio) / math.log(2.0)), 1.0, MOST_STAGES)
        fewer = ops.where(stages > 1, stages - 1, 2.0)  # at a bound, the other direction
        more = ops.where(stages < most, stages + 1, most - 1)
        adapted = ops.where(over, fewer, ops.where(under, more, stages))
        adapted = ops.where(full, ops.clip(adapted, 1.0, most), stages)
        window = ops.where(full, 0.0, steps), ops.where(full, 0.0, total)
        call.memory["fit"] = ops.pack(adapted, *window, fitted)

    def _exceeded_by(self, ops: Any, share: Any, moments: Any, total: Any = None) -> Any:
        """The threshold that `share` of the elements exceed, from their number, sum and sum of
        squares; 0 if they are too few or all alike. total: the elements, in the first stage."""
        count, sums, squares = moments
        count = ops.maximum(count, 1.0)
        mean = ops.maximum(sums / count, 1e-100)
        wanted = -ops.log(ops.minimum(share, 1.0))
        if self.distribution == "exponential":
            return mean * wanted * ops.where(sums > 0, 1.0, 0.0)
        if self.distribution == "gamma" and total is not None:
            s = ops.maximum(ops.log(mean) - ops.mean_log(total), 1e-6)
            shape = (3 - s + ops.sqrt((s - 3) * (s - 3) + 24 * s)) / (12 * s)
            limit = mean / shape * (wanted - ops.lgamma(shape))
            return ops.where(sums > 0, ops.maximum(limit, 0.0), 0.0)
        spread = ops.maximum(squares / count - mean * mean, 1e-12 * mean * mean)
        over = ops.minimum(mean * mean / spread, 1e6)
        shape, scale = (over - 1) / 2, mean * (over + 1) / 2
        near_zero = ops.magnitude(shape) < 1e-4
        safe = ops.where(near_zero, 1.0, shape)
        limit = ops.where(near_zero, mean * wanted, scale * (1 - ops.exp(-safe * wanted)) / safe)
        return ops.where(sums > 0, limit, 0.0)
