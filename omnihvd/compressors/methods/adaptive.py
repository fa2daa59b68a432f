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
        ops = call.ops
        return self._upper(ops.relu(total), call) - self._upper(ops.relu(-total), call)

    def _upper(self, positive: Any, call: Call) -> Any:
        ops = call.ops
        wanted = ops.maximum(1.0, ops.floor(call.ratio * ops.count(positive) + 0.5))
        largest = ops.above(positive, BELOW * ops.kth_largest(positive, wanted))
        mean = ops.sum(largest) / ops.maximum(ops.count(largest), 1.0)
        return ops.times(ops.sign(largest), mean)
