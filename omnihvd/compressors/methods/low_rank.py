"""PowerSGD: Vogels et al., "PowerSGD: practical low-rank gradient compression for distributed
optimization" (NeurIPS 2019), with warm start.

    P = M Q, summed over the ranks and made orthonormal;  Q = M' P, summed;  M becomes P Q'

The two small sums are Horovod's. The rule sends no part of a gradient, so each framework has its
own module: torch_low_rank.py, tensorflow_low_rank.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from omnihvd.compressors.rules import Rule, name_seed

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class LowRank(Rule):
    """A gradient as a matrix of low rank: its first dimension by all others."""

    factory = "power_sgd"
    sums = "low_rank"
    rank: int

    def check_use(self, averages: bool, grouped: bool) -> None:
        if grouped:
            raise ValueError("power_sgd sums each parameter in two steps: it needs groups=None")

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
        import numpy as np

        matrix = self.matrix(shape)
        if matrix is None:
            return {}
        random = np.random.default_rng(name_seed(name))  # the same on all ranks
        return {"right": random.standard_normal((matrix[1], self.rank)).astype(np.float32)}
