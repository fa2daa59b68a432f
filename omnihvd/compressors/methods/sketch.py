"""SketchML: Jiang et al., "SketchML: accelerating distributed machine learning with data sketches"
(SIGMOD 2018), its quantile buckets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from omnihvd.compressors.rules import Call, ElementRule

SAMPLE = 65536  # elements that the quantiles are estimated from


@dataclass(frozen=True)
class Sketch(ElementRule):
    """Each element as the mean of its bucket, between `quantiles` quantiles; 0 stays 0."""

    factory = "sketch"
    quantiles: int

    def sent(self, total: Any, call: Call) -> Any:
        ops, sample = call.ops, total
        if call.elements > SAMPLE:
            chosen = ops.random_indices(ops.number(SAMPLE), call.elements, 0, call)
            sample = ops.take(total, chosen)
        edges = ops.quantiles(sample, self.quantiles + 1)[1:-1]
        buckets = ops.bucket(total, edges)
        means = ops.take(ops.bucket_means(total, buckets, self.quantiles), buckets)
        return ops.select(total == 0, total, means)
