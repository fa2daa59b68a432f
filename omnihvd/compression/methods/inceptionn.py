"""INCEPTIONN: Li et al., "A network-centric hardware/algorithm co-design to accelerate distributed
training of deep neural networks" (MICRO 2018)."""

from __future__ import annotations

from dataclasses import dataclass

from omnihvd.compression.arrays import np
from omnihvd.compression.rules import CodedRule


@dataclass(frozen=True)
class Inceptionn(CodedRule):
    """Elements below 1 are cut, towards 0, to multiples of 2**-bits; others are sent unchanged.

    A part's code: for each element a tag of two bits, which gives the number of bits that follow: 0
    (the element is below 2**-bits), 8 or 16 (a sign and a multiple of 2**-bits), or 32 (float32).
    """

    factory = "inceptionn"
    bits: int

    def encode(self, values: np.ndarray) -> np.ndarray:
        steps = np.float32(2.0**self.bits)
        small = np.abs(values) < 1
        multiples = np.trunc(np.where(small, values, 0) * steps)
        sizes = np.abs(multiples)
        tags = (1 * (sizes >= 1) + (sizes >= 2**7) + (sizes >= 2**15)).astype(np.uint8)
        tags[~small] = 3
        cut = np.where(small, multiples / steps, values)
        four = np.concatenate([tags, np.zeros(-len(tags) % 4, np.uint8)]).reshape(-1, 4)
        parts = [
            four[:, 0] | four[:, 1] << 2 | four[:, 2] << 4 | four[:, 3] << 6,
            multiples[tags == 1].astype("<i1").view(np.uint8),
            multiples[tags == 2].astype("<i2").view(np.uint8),
            cut[tags == 3].astype("<f4").view(np.uint8),
        ]
        return np.concatenate(parts)

    def decode(self, code: np.ndarray, count: int) -> np.ndarray:
        at = -(-count // 4)
        shifts = np.array([0, 2, 4, 6], np.uint8)
        tags = (code[:at, None] >> shifts & 3).reshape(-1)[:count]
        values = np.zeros(count, np.float32)
        for tag, dtype, step in (
            (1, "<i1", 2.0**-self.bits),
            (2, "<i2", 2.0**-self.bits),
            (3, "<f4", 1),
        ):
            chosen = tags == tag
            end = at + int(chosen.sum()) * np.dtype(dtype).itemsize
            values[chosen] = code[at:end].copy().view(dtype).astype(np.float32) * np.float32(step)
            at = end
        return values
