"""One constant threshold: Sahu et al., "Rethinking gradient sparsification as total error
minimization" (NeurIPS 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from omnihvd.compression.rules import Call, ThresholdRule


@dataclass(frozen=True)
class ElementThreshold(ThresholdRule):
    """The elements with absolute values above a constant."""

    factory = "topk_threshold"
    adjustable = True
    threshold: float

    def limit(self, total: Any, call: Call) -> float:
        return self.threshold
