"""Lin et al., "Deep Gradient Compression" (ICLR 2018): a threshold from a sample. The momentum
correction is the compressor's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from omnihvd.compressors.methods.top_elements import BELOW
from omnihvd.compressors.rules import Call, ThresholdRule

SAMPLE = 100  # sample one of so many elements
SMALL = 10_000  # elements: fewer are sampled whole
ROUNDS, NEAR = 10, 0.3


@dataclass(frozen=True)
class Dgc(ThresholdRule):
    """The elements above the `ratio`-quantile of a sample of 1%.

    The threshold is then corrected until the kept share is within NEAR of the ratio, for at most
    ROUNDS. Each round multiplies by an eighth root of the error; the paper's fixed factors may
    oscillate.
    """

    factory = "dgc"
    adjustable = True
    selects = True
    momentum = 0.9
    ratio: float

    def limit(self, total: Any, call: Call) -> Any:
        ops, wanted = call.ops, call.count
        if call.elements <= SMALL:
            return BELOW * ops.kth_largest(ops.abs(total), wanted)
        drawn = ops.number(call.elements // SAMPLE)
        chosen = ops.random_indices(drawn, call.elements, 0, call)
        count = ops.maximum(1.0, ops.floor(call.ratio * drawn + 0.5))
        start = BELOW * ops.kth_largest(ops.abs(ops.take(total, chosen)), count)

        def unsettled(tries: Any, limit: Any, kept: Any) -> Any:
            far = ops.magnitude(kept - wanted) > NEAR * wanted
            return ops.both(far, ops.both(tries < ROUNDS, limit > 0))

        def again(tries: Any, limit: Any, kept: Any) -> tuple[Any, Any, Any]:
            limit = limit * ops.exp(ops.log(ops.clip(kept / wanted, 1 / 16, 16.0)) / 8)
            return tries + 1, limit, ops.exceedance(total, limit)[0]

        first = (ops.number(0), start, ops.exceedance(total, start)[0])
        rounds, limit, _ = ops.loop(unsettled, again, first)
        ops.count_rounds(rounds)
        return limit
