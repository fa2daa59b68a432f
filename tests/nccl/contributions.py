"""The tensors of ranks in these tests, and their sum, in closed form."""

from __future__ import annotations

import numpy as np


def values(count: int, density: float, rank: int, seed: int = 0) -> np.ndarray:
    """Small integers, different for each rank and index, in that share of the blocks of 32; of the
    blocks, every third is mostly zeros. As float64; sums of a few ranks are exact in any dtype."""
    index = np.arange(count)
    filled = np.random.default_rng([seed, rank]).random(count // 32 + 1) < density
    numbers = (index * (rank + 3) + rank) % 7 + 1.0
    sparse = (index // 32 % 3 == 0) & (index % 16 != rank)
    return np.where(filled[index // 32] & ~sparse, numbers, 0.0)


def total(count: int, density: float, size: int, seed: int = 0) -> np.ndarray:
    return sum(values(count, density, rank, seed) for rank in range(size))
