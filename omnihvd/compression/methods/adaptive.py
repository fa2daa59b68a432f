"""Adaptive quantization: Dryden et al., "Communication quantization for data-parallel training of
deep neural networks" (MLHPC 2016)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from omnihvd.compression.methods.top_elements import BELOW
from omnihvd.compression.rules import Call, ElementRule, kept_count


@dataclass(frozen=True)
class Adaptive(ElementRule):
    """The `ratio` of the positive elements that are largest, each as their mean, and of the
    negative ones likewise."""

    factory = "adaptive"
    adjustable = True
    ratio: float

    def sent(self, total: Any, call: Call) -> Any:
        return self._upper(total.clip(min=0), call) - self._upper((-total).clip(min=0), call)

    def _upper(self, positive: Any, call: Call) -> Any:
        ops = call.ops
        wanted = kept_count(call.ratio, int(ops.count(positive)))
        limit = BELOW * float(ops.kth_largest(positive, max(1, wanted)))
        largest = ops.above(positive, limit)
        mean = float(largest.sum()) / max(1, int(ops.count(largest)))
        return ops.sign(largest) * mean
