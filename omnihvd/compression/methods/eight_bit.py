"""8-bit approximation, with the dynamic tree of Dettmers, "8-bit approximations for parallelism in
deep learning" (ICLR 2016)."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from omnihvd.compression.arrays import np
from omnihvd.compression.rules import CodedRule


@functools.cache
def dynamic_tree() -> np.ndarray:
    """The 128 absolute values of a 7-bit code, relative to the largest. The bits are `zeros` zero
    bits, a tenth each, a one, and a fraction from 0.1 to 1, the middle of its interval."""
    values = [0.0]
    for zeros in range(7):
        steps = 2 ** (6 - zeros)
        edges = np.linspace(0.1, 1, steps + 1)
        values.extend(10.0**-zeros * (edges[1:] + edges[:-1]) / 2)
    values[64] = 1.0  # the largest itself
    return np.sort(np.array(values, np.float32))


@dataclass(frozen=True)
class EightBit(CodedRule):
    """Each element as the nearest of 255 values of a dynamic tree, scaled by the largest magnitude.

    A part's code: the largest magnitude (f32); a byte an element, its sign and the tree's 7 bits.
    """

    factory = "eight_bit"

    def encode(self, values: np.ndarray) -> np.ndarray:
        tree = dynamic_tree()
        magnitudes = np.abs(values)
        largest = np.float32(max(magnitudes.max(initial=0), 1e-30))
        codes = np.searchsorted((tree[1:] + tree[:-1]) / 2, magnitudes / largest).astype(np.uint8)
        codes |= (values < 0).astype(np.uint8) << np.uint8(7)
        return np.concatenate([np.array([largest], "<f4").view(np.uint8), codes])

    def decode(self, code: np.ndarray, count: int) -> np.ndarray:
        largest = code[:4].copy().view("<f4")[0]
        values: np.ndarray = (np.concatenate([dynamic_tree(), -dynamic_tree()]) * largest)[code[4:]]
        return values
