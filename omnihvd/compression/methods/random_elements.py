"""Random-k: Stich et al., "Sparsified SGD with memory" (NeurIPS 2018)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from omnihvd.compression.rules import Call, ElementRule


@dataclass(frozen=True)
class RandomElements(ElementRule):
    """A random `ratio` of a parameter's elements, the same on all ranks.

    They are drawn with replacement, so many that the expected share of distinct ones is `ratio`.
    The time grows with the elements drawn, not with all elements. A ratio of 1 sends all.
    """

    factory = "randomk"
    selects = True
    ratio: float
    seed: int

    def sent(self, total: Any, call: Call) -> Any:
        random = call.random(self.seed, call.seed, call.step)
        chosen = call.ops.on(random.integers(call.parts, size=_draws(call)), total)
        sent = call.ops.zeros(total)
        sent[chosen] = total[chosen]
        return sent

    def scale(self, call: Call) -> float:
        return 1 / (1 - (1 - 1 / call.parts) ** _draws(call))


def _draws(call: Call) -> int:
    """call.ratio: below 1, since split.py chooses nothing at 1."""
    return max(1, int(math.log(1 - call.ratio) / math.log(1 - 1 / call.parts) + 0.5))
