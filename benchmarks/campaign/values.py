"""Contributions of ranks: values unique per rank and index, with a closed-form sum."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.campaign.plan import Sum

BLOCK = 256
# The largest sums: up to here every whole number is exact.
EXACT = {"float16": 2048, "bfloat16": 256, "float32": 1 << 24, "int8": 127, "uint8": 255}


def _period(size: int, dtype: str) -> int:
    """Values repeat after so many elements, so that sums of `size` ranks are exact."""
    return max((EXACT.get(dtype, 1 << 30) - size * size) // (size * size), 1)


def _kept(seed: int, rank: int, count: int, density: float) -> np.ndarray:
    """[element] whether it is in a non-zero block of this rank."""
    blocks = np.random.default_rng((seed, rank)).random(-(-count // BLOCK)) < density
    return np.repeat(blocks, BLOCK)[:count]


def contribution(seed: int, rank: int, size: int, count: int, s: Sum) -> np.ndarray:
    index = np.arange(count, dtype=np.int64) % _period(size, s.dtype)
    values = index * size + rank + 1
    return np.where(_kept(seed, rank, count, s.density), values, 0)


def total(seed: int, size: int, count: int, s: Sum) -> np.ndarray:
    """The sum over all ranks. Rank r adds index * size + r + 1 where it has a block."""
    index = np.arange(count, dtype=np.int64) % _period(size, s.dtype)
    if s.density == 1:
        return index * (size * size) + size * (size + 1) // 2
    kept = np.stack([_kept(seed, rank, count, s.density) for rank in range(size)])
    ranks = np.arange(1, size + 1, dtype=np.int64)
    return index * size * kept.sum(0) + (kept * ranks[:, None]).sum(0)


def encode(values: np.ndarray, dtype: str) -> np.ndarray:
    """bfloat16 as uint16, since NumPy does not have it."""
    if dtype == "bfloat16":
        return np.asarray(values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(dtype)


def decode(array: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "bfloat16":
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array


def difference(got: np.ndarray, expected: np.ndarray, dtype: str) -> str:
    """Empty: none."""
    wanted = encode(expected, dtype)
    if np.array_equal(got, wanted):
        return ""
    (where,) = np.nonzero(decode(got, dtype) != decode(wanted, dtype))
    if not len(where):  # -0 beside 0, in bfloat16
        return ""
    first: Any = where[0]
    return (
        f"{len(where)} of {len(got)} elements are wrong, at first element {first}: "
        f"{decode(got, dtype)[first]} instead of {decode(wanted, dtype)[first]}"
    )
