"""PowerSGD: Vogels et al., "PowerSGD: practical low-rank gradient compression for distributed
optimization" (NeurIPS 2019), with warm start.

    P = M Q, summed over the ranks and made orthonormal;  Q = M' P, summed;  M becomes P Q'

The two small sums are Horovod's (two_steps.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from omnihvd.compression import counters
from omnihvd.compression.arrays import np
from omnihvd.compression.rules import Rule, name_seed


@dataclass(frozen=True)
class LowRank(Rule):
    """A gradient as a matrix of low rank: its first dimension by all others."""

    factory = "power_sgd"
    sums = "two_steps"
    rank: int

    def takes(self, shape: tuple[int, ...]) -> bool:
        return self.matrix(shape) is not None

    def matrix(self, shape: tuple[int, ...]) -> tuple[int, int] | None:
        """Rows and columns. None: sent whole, being no matrix or no larger than the factors."""
        if len(shape) < 2:
            return None
        rows, columns = shape[0], math.prod(shape[1:])
        small = self.rank * (rows + columns) < rows * columns
        return (rows, columns) if small else None

    def memory(self, name: str, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
        matrix = self.matrix(shape)
        if matrix is None:
            return {}
        random = np.random.default_rng(name_seed(name))  # the same on all ranks
        return {"right": random.standard_normal((matrix[1], self.rank)).astype(np.float32)}


class FactorSum:
    """One parameter's sum, as two_steps.TwoSteps."""

    exchanges = (("average", "left"), ("average", "right"))

    def __init__(self, rule: LowRank, ops: Any, feedback: bool, state: Any, ranks: Any) -> None:
        self._rule, self._ops, self._feedback = rule, ops, feedback
        self._state, self._ranks = state, ranks

    def first(self, gradient: Any) -> Any:
        ops, state = self._ops, self._state
        with counters.timed(math.prod(gradient.shape)):
            right = state.remember(ops, self._rule, gradient)["right"]
            if self._feedback:
                total = state.accumulate(ops, gradient)
            else:
                total = ops.zeros(gradient) + gradient
            self._total = total.reshape(self._rule.matrix(tuple(gradient.shape)))
            left = self._total @ ops.cast(right, total)
            counters.add_kept(ops.device(gradient), sum(map(math.prod, (left.shape, right.shape))))
        state.step += 1
        return left

    def second(self, left: Any) -> Any:
        finite = math.isfinite(float(left.sum()))  # else it stays so, and so does the result
        self._left = self._ops.orthonormal(left) if finite else left
        return self._total.T @ self._left

    def result(self, right: Any) -> Any:
        result = self._left @ right.T
        if self._feedback:  # the total is in the rest
            self._ops.subtract(self._total, result)
        if math.isfinite(float(right.sum())):
            # A column of zeros, as after a gradient of zeros, would find nothing ever after.
            old = self._ops.cast(self._state.memory["right"], right)
            self._state.memory["right"] = self._ops.where((right != 0).any(0), right, old)
        return result if self._ranks.averages else result * self._ranks.size
