"""Sends a sparsifier's elements in fewer bits: positions as a set, values by another code."""

from __future__ import annotations

from dataclasses import dataclass

from omnihvd.compression.arrays import np
from omnihvd.compression.rules import CodedRule

BITMAP, GAPS, FAR = 0, 1, 255


@dataclass(frozen=True)
class CodedSet(CodedRule):
    """The elements that are not 0, encoded by `of_values`.

    A part's code: the number of elements and the bytes of their positions (two int64); a byte,
    BITMAP or GAPS, the shorter form; the positions; the code of the values. A gap is a byte, the
    number of zeros before an element (FAR: that many zeros, and no element after them).
    """

    of_values: CodedRule

    @property
    def factory(self) -> str:  # type: ignore[override]
        return self.of_values.factory

    def encode(self, values: np.ndarray) -> np.ndarray:
        places = np.flatnonzero(values)
        gaps = np.diff(places, prepend=-1) - 1
        skips = gaps // FAR
        if len(places) + skips.sum() < len(values) / 8:
            where = np.full(len(places) + int(skips.sum()), FAR, np.uint8)
            where[np.cumsum(skips + 1) - 1] = gaps % FAR
            form = GAPS
        else:
            where, form = np.packbits(values != 0), BITMAP
        counts = np.array([len(places), len(where)], "<i8").view(np.uint8)
        code = self.of_values.encode(values[places])
        return np.concatenate([counts, np.array([form], np.uint8), where, code])

    def decode(self, code: np.ndarray, count: int) -> np.ndarray:
        size, length = (int(n) for n in code[:16].copy().view("<i8"))
        where, at = code[17 : 17 + length], 17 + length
        if code[16] == GAPS:
            ends = np.cumsum(where.astype(np.int64) + (where != FAR))
            places = ends[where != FAR] - 1
        else:
            places = np.flatnonzero(np.unpackbits(where, count=count))
        values = np.zeros(count, np.float32)
        values[places] = self.of_values.decode(code[at:], size)
        return values
