"""SketchML: Jiang et al., "SketchML: accelerating distributed machine learning with data sketches"
(SIGMOD 2018), its quantile buckets."""

from __future__ import annotations

from dataclasses import dataclass

from omnihvd.compression.arrays import np
from omnihvd.compression.rules import CodedRule

SAMPLE = 65536  # elements that the quantiles are estimated from


@dataclass(frozen=True)
class Sketch(CodedRule):
    """Each element as the mean of its bucket, between `quantiles` quantiles; 0 stays 0.

    A part's code: the buckets' means (f32); a byte an element, its bucket, or `quantiles` for 0.
    """

    factory = "sketch"
    quantiles: int

    def encode(self, values: np.ndarray) -> np.ndarray:
        zero = values == 0
        some = values[~zero]  # nearly all of an embedding's gradient is zeros
        sample = np.sort(some[:: max(1, len(some) // SAMPLE)])
        places = np.linspace(0, max(len(sample) - 1, 0), self.quantiles + 1)[1:-1].astype(np.int64)
        edges = sample[places] if len(sample) else sample
        buckets = np.searchsorted(edges, values)
        buckets[zero] = self.quantiles
        counts = np.bincount(buckets, minlength=self.quantiles + 1)[: self.quantiles]
        sums = np.bincount(buckets, values, self.quantiles + 1)[: self.quantiles]
        means = (sums / np.maximum(counts, 1)).astype("<f4")
        return np.concatenate([means.view(np.uint8), buckets.astype(np.uint8)])

    def decode(self, code: np.ndarray, count: int) -> np.ndarray:
        means = code[: 4 * self.quantiles].copy().view("<f4")
        values: np.ndarray = np.append(means, np.float32(0))[code[4 * self.quantiles :]]
        return values
