"""Counts a gradient's non-zero elements by groups of 32; all other figures follow from the counts.

A `Counts` has the number of non-zero elements in each 32 consecutive ones (-0.0 is zero, as
everywhere), and which rows have any. The counts of several ranks or batches give density by block
size, unions, and the growth of unions with the number of ranks.
"""

from __future__ import annotations

import zlib
from typing import Any, NamedTuple

import numpy as np

GROUP = 32  # elements
BLOCK_SIZES = (32, 64, 128, 256, 512, 1024)
_PIECE = 1 << 20  # elements examined together: they and the results stay in the cache
_LANES = np.uint64(0x0101010101010101)


class Counts(NamedTuple):
    """The counts of a tensor. groups: zlib of uint8, the non-zero elements of each group. rows:
    zlib of bits, the rows that are not zero, if the tensor has two or more dimensions, else
    empty."""

    elements: int
    nonzero: int
    n_rows: int
    nonzero_rows: int
    groups: bytes
    rows: bytes


def count(array: Any, n_rows: int = 1) -> Counts:
    """array: floats or integers, any shape, contiguous; n_rows: of equal length."""
    flat = array.reshape(-1)
    groups = np.empty(-(-flat.size // GROUP), np.uint8)
    rows: Any = np.zeros(n_rows if n_rows > 1 else 0, bool)
    width = flat.size // max(n_rows, 1)
    for start in range(0, flat.size, _PIECE):
        piece = flat[start : start + _PIECE] != 0
        groups[start // GROUP : start // GROUP + -(-piece.size // GROUP)] = _by_group(piece)
    if rows.size and width % GROUP == 0:
        rows = groups.reshape(n_rows, -1).any(1)
    elif rows.size:
        rows = (flat.reshape(n_rows, width) != 0).any(1)
    return packed(flat.size, groups, rows)


def count_rows(n_rows: int, width: int, numbers: Any, values: Any) -> Counts:
    """Counts a sparse gradient. values: (k, width), the rows with these `numbers`; numbers may
    repeat."""
    unique, places = np.unique(numbers, return_inverse=True)
    elements = np.zeros((len(unique), width), bool)
    np.logical_or.at(elements, places.reshape(-1), values.reshape(len(numbers), width) != 0)
    rows = np.zeros(n_rows if n_rows > 1 else 0, bool)
    if rows.size:
        rows[unique] = elements.any(1)
    groups = np.zeros(-(-n_rows * width // GROUP), np.uint8)
    places = (unique[:, None] * width + np.arange(width)[None, :])[elements] // GROUP
    groups += np.bincount(places, minlength=groups.size).astype(np.uint8)
    return packed(n_rows * width, groups, rows)


def packed(elements: int, groups: Any, rows: Any) -> Counts:
    """groups: uint8; rows: bool, or empty."""
    return Counts(
        elements,
        int(groups.sum(dtype=np.int64)),
        rows.size,
        int(rows.sum()),
        zlib.compress(groups.tobytes(), 1),
        zlib.compress(np.packbits(rows).tobytes(), 1) if rows.size else b"",
    )


def groups_of(counts: Counts) -> Any:
    return np.frombuffer(zlib.decompress(counts.groups), np.uint8)


def rows_of(counts: Counts) -> Any:
    if not counts.rows:
        return np.zeros(0, bool)
    bits = np.frombuffer(zlib.decompress(counts.rows), np.uint8)
    return np.unpackbits(bits, count=counts.n_rows).astype(bool)


def _by_group(nonzero: Any) -> Any:
    """How many of each group's bools are true."""
    whole = nonzero.size // GROUP * GROUP
    lanes = nonzero[:whole].view(np.uint64).reshape(-1, 4)
    sums = lanes[:, 0] + lanes[:, 1] + lanes[:, 2] + lanes[:, 3]  # eight counts of up to 4 each
    counts = ((sums * _LANES) >> np.uint64(56)).astype(np.uint8)
    if whole < nonzero.size:
        counts = np.append(counts, np.uint8(nonzero[whole:].sum()))
    return counts


def by_block(groups: Any, block_size: int) -> Any:
    """Elements of each block that are not zero, from those of the groups (last axis)."""
    each = block_size // GROUP
    blocks = -(-groups.shape[-1] // each)
    pad = blocks * each - groups.shape[-1]
    if pad:
        groups = np.concatenate([groups, np.zeros((*groups.shape[:-1], pad), groups.dtype)], -1)
    sums: Any = groups.reshape(*groups.shape[:-1], blocks, each).sum(-1, dtype=np.uint16)
    return sums


def united_groups(groups: Any) -> Any:
    """Estimates how many elements of each group are not zero on any rank, as if positions within a
    group were random. groups: (ranks, groups)."""
    if len(groups) == 1:
        return groups[0]
    zero = np.prod(1 - groups / np.float32(GROUP), axis=0)
    united = np.rint(GROUP * (1 - zero)).astype(np.uint8)
    return np.maximum(united, groups.max(0))  # exact where only one rank has a group


def union_share(incidence: Any, samples: int, ranks: int) -> float:
    """The expected share of units (blocks, rows) that any of `ranks` ranks has. incidence: for each
    unit, how many of `samples` samples have it.

    Up to `samples` ranks it is the mean over all choices of `ranks` samples (rarefaction). Beyond,
    it is extrapolated from the numbers of units that exactly one and exactly two samples have
    (Chao2; Chao et al., Ecological Monographs 2014).
    """
    units = incidence.size
    if units == 0 or samples == 0:
        return 0.0
    histogram = np.bincount(incidence, minlength=samples + 1)[: samples + 1].astype(float)
    if ranks <= samples:
        absent = np.ones(samples + 1)  # chance that no chosen sample has a unit of c samples
        for chosen in range(ranks):
            absent *= np.clip(samples - chosen - np.arange(samples + 1), 0, None)
            absent /= samples - chosen
        return float((histogram * (1 - absent)).sum() / units)
    seen, once = units - histogram[0], histogram[1]
    twice = histogram[2] if samples > 1 else 0.0
    unseen = (samples - 1) / samples * once * max(once - 1, 0) / (2 * (twice + 1))
    if samples == 1:  # other samples are unknown: assume random placement
        return float(1 - (1 - seen / units) ** ranks)
    unseen = min(unseen, units - seen)
    if unseen == 0 or once == 0:
        return float(seen / units)
    new = 1 - (1 - once / (samples * unseen + once)) ** (ranks - samples)
    return float(min(units, seen + unseen * new) / units)
