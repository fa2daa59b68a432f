"""Lin et al., "Deep Gradient Compression" (ICLR 2018): a threshold from a sample. The momentum
correction is the compressor's."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from omnihvd.compression import counters
from omnihvd.compression.methods.moments import exceedance
from omnihvd.compression.methods.top_elements import exact_limit
from omnihvd.compression.rules import Call, ThresholdRule

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

    def limit(self, total: Any, call: Call) -> float:
        if call.parts <= SMALL:
            return exact_limit(total, call)
        drawn, wanted = call.parts // SAMPLE, call.count
        chosen = call.random(call.seed, call.step).integers(call.parts, size=drawn)
        sample = total[call.ops.on(chosen, total)]
        limit = exact_limit(sample, dataclasses.replace(call, parts=drawn))
        kept, sums, _ = exceedance(call.ops, total, limit)
        if not math.isfinite(sums):
            return math.nan
        tries = 0
        while abs(kept - wanted) > NEAR * wanted and tries < ROUNDS and limit > 0:
            limit *= min(max(kept / wanted, 1 / 16), 16.0) ** (1 / 8)
            kept, tries = exceedance(call.ops, total, limit)[0], tries + 1
        counters.add(rounds=tries)
        return limit
