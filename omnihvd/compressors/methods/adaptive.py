"""Adaptive quantization: Dryden et al., "Communication quantization for data-parallel training of
deep neural networks" (MLHPC 2016)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from omnihvd.compressors.methods.top_elements import BELOW
from omnihvd.compressors.rules import Call, ElementRule


@dataclass(frozen=True)
class Adaptive(ElementRule):
    """The `ratio` of the positive elements that are largest, each as their mean, and of the
    negative ones likewise."""

    factory = "adaptive"
    adjustable = True
    ratio: float

    def sent(self, total: Any, call: Call) -> Any:
        return self._upper(total, call) - self._upper(-total, call)

    def _upper(self, total: Any, call: Call) -> Any:
        ops = call.ops
        positive = ops.count(total > 0)
        wanted = ops.maximum(1.0, ops.floor(call.ratio * positive + 0.5))
        limit = ops.maximum(BELOW * ops.kth_largest(total, wanted), 0.0)
        chosen = ops.exceeds(total, limit)
        mean = ops.sum_where(chosen, total) / ops.maximum(ops.count(chosen), 1.0)
        return ops.filled(chosen, mean, total)
