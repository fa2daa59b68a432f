"""Block-sparse tensors to reduce: the positions of their non-zeros, and their sum.

Values are as unique per rank and index as exactness in every dtype allows, so a block in the wrong
place or from the wrong rank shows in the sum.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

BLOCK = 256  # elements; of the patterns, whatever the engine's own block size

MEMORY = ("kept", "new")
PATTERNS = ("random", "identical", "disjoint", "zipf", "elements")


@dataclass(frozen=True)
class Point:
    """One tensor to reduce. `density` is the share of non-zero blocks (elements: of elements)."""

    count: int  # elements
    density: float
    pattern: str = "random"
    dtype: str = "float32"
    memory: str = "kept"  # or "new" for each sum
    tensors: int = 1  # parts that it is cut into and submitted together

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


def _present(point: Point, rank: int, size: int) -> np.ndarray:
    """Which elements (pattern "elements") or blocks are not zero."""
    if point.pattern == "elements":
        return np.random.default_rng(3000 + rank).random(point.count) < point.density
    return present_blocks(point, rank, size)


def _fill(out: np.ndarray, point: Point, rank: int, present: np.ndarray, begin: int) -> np.ndarray:
    """Elements begin, begin + 1, ... of a rank's tensor; begin is that of a block.

    At index i it is (5 i + 17 rank) mod 29 + 1, or zero: a period, written over and over.
    """
    period = ((np.arange(begin, begin + 29) * 5 + rank * 17) % 29 + 1).astype(point.dtype)
    whole = len(out) // 29
    out[: whole * 29].reshape(whole, 29)[:] = period
    out[whole * 29 :] = period[: len(out) - whole * 29]
    if point.pattern == "elements":
        out[~present[begin : begin + len(out)]] = 0
        return out
    absent = ~present[begin // BLOCK : -(-(begin + len(out)) // BLOCK)]
    blocks = len(out) // BLOCK
    out[: blocks * BLOCK].reshape(blocks, BLOCK)[absent[:blocks]] = 0
    if absent[blocks:].any():
        out[blocks * BLOCK :] = 0
    return out


def part(point: Point, rank: int, size: int) -> np.ndarray:
    """This rank's tensor, of shape (count,)."""
    out = np.empty(point.count, point.dtype)
    return _fill(out, point, rank, _present(point, rank, size), 0)


def row_width(x: np.ndarray) -> int:
    """The width of rows for a sparse tensor of x's non-zeros: a block, or a single element where
    the non-zeros are scattered over blocks."""
    by_rows = x[: len(x) // BLOCK * BLOCK].reshape(-1, BLOCK) != 0
    return 1 if by_rows.mean() < by_rows.any(1).mean() / 2 else BLOCK


def is_total(result: np.ndarray, point: Point, size: int, most_error: float = 0) -> bool:
    """Whether this is the sum over all ranks, in closed form. most_error: the largest error allowed
    relative to the sum's size (over pieces of about a MB)."""
    present = [_present(point, rank, size) for rank in range(size)]
    chunk = 1024 * BLOCK  # stays in the processor's cache
    one, expected = np.empty(chunk, point.dtype), np.empty(chunk, point.dtype)
    for begin in range(0, point.count, chunk):
        got = result[begin : begin + chunk]
        expected[:] = 0
        for rank in range(size):
            expected[: len(got)] += _fill(one[: len(got)], point, rank, present[rank], begin)
        if most_error:
            wanted = expected[: len(got)].astype(np.float64)
            if not np.linalg.norm(got - wanted) <= most_error * np.linalg.norm(wanted):
                return False
        elif not np.array_equal(got, expected[: len(got)]):
            return False
    return True


@dataclass(frozen=True)
class Volume:
    """Bytes that any lossless scheme in units of blocks must move, for the wire bound.

    A block counts as its elements, or as a bitmap and its non-zero elements where that is less.
    """

    largest_part: int  # of one host: non-zero on any of its ranks
    union: int


def volume(point: Point, size: int, per_host: int = 1) -> Volume:
    """size: ranks; per_host: ranks on each host."""
    itemsize = np.dtype(point.dtype).itemsize
    elements = point.pattern == "elements"
    union, largest = np.zeros(1, bool), 0
    for first in range(0, size, per_host):
        part = np.zeros(1, bool)
        for rank in range(first, first + per_host):
            part = part | _present(point, rank, size)
        union = union | part
        largest = max(largest, _bytes(part, elements, itemsize))
    return Volume(largest, _bytes(union, elements, itemsize))


def _bytes(present: np.ndarray, elements: bool, itemsize: int) -> int:
    if not elements:
        return int(present.sum()) * BLOCK * itemsize
    starts = np.arange(0, len(present), BLOCK)
    nonzero = np.add.reduceat(present, starts, dtype=np.int64)
    packed = BLOCK // 8 + nonzero * itemsize
    return int(np.minimum(packed, BLOCK * itemsize)[nonzero > 0].sum())
