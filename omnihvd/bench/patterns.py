"""Block-sparse tensors to reduce: where their non-zeros lie, and what their sum is.

Values are unique per rank and index as far as exactness in every dtype allows, so that a block in
the wrong place or from the wrong rank shows in the sum.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

BLOCK = 256  # elements; of the patterns, whatever the engine's own block size
ROW_BLOCKS = 1  # an embedding row of 256 elements

PATTERNS = ("random", "identical", "disjoint", "zipf", "elements")


@dataclass(frozen=True)
class Point:
    """One tensor to reduce. `density` is the share of non-zero blocks (elements: of elements)."""

    count: int  # elements
    density: float
    pattern: str = "random"
    dtype: str = "float32"

    @property
    def bytes(self) -> int:
        return self.count * np.dtype(self.dtype).itemsize


def present_blocks(point: Point, rank: int, size: int) -> np.ndarray:
    """Which blocks are non-zero on this rank, as a boolean array.

    random     drawn independently on each rank
    identical  drawn once: the union is no larger than a part
    disjoint   no block on two ranks, as far as the density leaves room
    zipf       rows of an embedding that a batch touches, drawn with Zipf frequencies (exponent 1),
               frequent rows in front, until the density is reached
    """
    blocks = -(-point.count // BLOCK)
    wanted = round(point.density * blocks)
    present = np.zeros(blocks, bool)
    if point.pattern == "identical":
        present[np.random.default_rng(1).permutation(blocks)[:wanted]] = True
    elif point.pattern == "disjoint":
        order = np.random.default_rng(1).permutation(blocks)
        present[np.take(order, np.arange(rank * wanted, (rank + 1) * wanted), mode="wrap")] = True
    elif point.pattern == "zipf":
        present[_zipf_rows(blocks, wanted, rank)] = True
    else:
        present[np.random.default_rng(1000 + rank).permutation(blocks)[:wanted]] = True
    return present


def _zipf_rows(rows: int, wanted: int, rank: int) -> np.ndarray:
    rng = np.random.default_rng(2000 + rank)
    cumulative = np.cumsum(1 / np.arange(1, rows + 1))
    drawn = np.zeros(rows, bool)
    while drawn.sum() < wanted:
        draws = np.searchsorted(cumulative, rng.random(4096) * cumulative[-1])
        missing = wanted - int(drawn.sum())
        fresh = np.unique(draws[~drawn[draws]])
        drawn[rng.permutation(fresh)[:missing]] = True
    return np.flatnonzero(drawn)


def _mask(point: Point, rank: int, size: int) -> np.ndarray:
    if point.pattern == "elements":
        return np.random.default_rng(3000 + rank).random(point.count) < point.density
    return np.repeat(present_blocks(point, rank, size), BLOCK)[: point.count]


def _values(point: Point, rank: int) -> np.ndarray:
    index = np.arange(point.count, dtype=np.int32)
    return ((index * 5 + rank * 17) % 29 + 1).astype(point.dtype)


def part(point: Point, rank: int, size: int) -> np.ndarray:
    """This rank's tensor, of shape (count,)."""
    return _values(point, rank) * _mask(point, rank, size)


def total(point: Point, size: int) -> np.ndarray:
    """The sum over all ranks, in closed form."""
    result = np.zeros(point.count, point.dtype)
    for rank in range(size):
        result += part(point, rank, size)
    return result


@dataclass(frozen=True)
class Volume:
    """Bytes that any lossless scheme in units of blocks must move, for the wire bound.

    A block counts as its elements, or as a bitmap and its non-zero elements where that is less.
    """

    largest_part: int  # of one rank
    union: int


def volume(point: Point, size: int) -> Volume:
    itemsize = np.dtype(point.dtype).itemsize
    if point.pattern != "elements":
        present = [present_blocks(point, rank, size) for rank in range(size)]
        union = np.logical_or.reduce(present)
        largest = max(int(p.sum()) for p in present)
        return Volume(largest * BLOCK * itemsize, int(union.sum()) * BLOCK * itemsize)
    union = np.zeros(point.count, bool)
    largest = 0
    for rank in range(size):
        mask = _mask(point, rank, size)
        union |= mask
        largest = max(largest, _packed_bytes(mask, itemsize))
    return Volume(largest, _packed_bytes(union, itemsize))


def _packed_bytes(mask: np.ndarray, itemsize: int) -> int:
    starts = np.arange(0, len(mask), BLOCK)
    nonzero = np.add.reduceat(mask, starts, dtype=np.int64)
    packed = BLOCK // 8 + nonzero * itemsize
    return int(np.minimum(packed, BLOCK * itemsize)[nonzero > 0].sum())
