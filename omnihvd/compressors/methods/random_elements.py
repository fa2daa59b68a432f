"""Random-k: Stich et al., "Sparsified SGD with memory" (NeurIPS 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from omnihvd.compressors.rules import Call, ElementRule


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
        chosen = call.ops.random_indices(_draws(call), call.elements, self.seed, call)
        return call.ops.only(total, chosen)

    def scale(self, call: Call) -> Any:
        ops = call.ops
        missed = ops.exp(_draws(call) * ops.log(ops.number(1 - 1 / max(call.elements, 2))))
        return 1 / (1 - missed)


def _draws(call: Call) -> Any:
    ops, elements = call.ops, max(call.elements, 2)
    missed = ops.maximum(1 - call.ratio, 1 / elements**2)  # so that all are drawn, at nearly 1
    return ops.maximum(
        1.0, ops.floor(ops.log(missed) / ops.log(ops.number(1 - 1 / elements)) + 0.5)
    )
