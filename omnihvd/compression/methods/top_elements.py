"""Top-k: Aji and Heafield, "Sparse communication for distributed gradient descent" (EMNLP 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from omnihvd.compression.rules import Call, ThresholdRule

BELOW = 1 - 2.0**-23  # of a float32, the next lower one or the one after it


@dataclass(frozen=True)
class TopElements(ThresholdRule):
    """The `ratio` of a parameter's elements with the largest absolute values; ties are all sent."""

    factory = "topk"
    adjustable = True
    selects = True
    ratio: float

    def limit(self, total: Any, call: Call) -> float:
        return exact_limit(total, call)


def exact_limit(total: Any, call: Call) -> float:
    """The threshold that call.count elements exceed; NaN if one of these is NaN."""
    return BELOW * float(call.ops.kth_largest(abs(total), call.count))
