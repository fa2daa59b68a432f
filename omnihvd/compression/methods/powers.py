"""Powers of two, at random without bias: Horvath et al., "Natural Compression for Distributed Deep
Learning" (MSML 2022), and natural dithering (section 5), with powers relative to a norm."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass

from omnihvd.compression.arrays import np
from omnihvd.compression.rules import CodedRule


@dataclass(frozen=True)
class NaturalDithering(CodedRule):
    """The largest magnitude of a part, times 0 or one of 2**(bits-1) - 1 powers of two (1 the
    largest), times a sign.

    A part's code: that magnitude (f32); `bits` bits an element, the highest for the sign.
    """

    factory = "natural_dithering"
    bits: int

    def norm(self, magnitudes: np.ndarray) -> float:
        return float(magnitudes.max(initial=0))

    def encode(self, values: np.ndarray) -> np.ndarray:
        magnitudes = np.abs(values)
        norm = self.norm(magnitudes)
        # The same code for the same values, in every run.
        noise = np.random.default_rng(zlib.crc32(values.tobytes())).random(len(values), np.float32)
        shares = magnitudes.astype(np.float64) / (norm or 1.0)
        lowest = 2.0 ** (1 - self._levels)
        fractions, exponents = np.frexp(np.maximum(shares, lowest))
        # share = fraction * 2**exponent, 1/2 <= fraction < 1: down to 2**(exponent - 1), or up.
        up = noise < 2 * fractions - 1
        levels = exponents - 1 + up + self._levels
        small = shares < lowest
        levels = np.where(small, noise < shares / lowest, levels)
        codes = levels.astype(np.uint8) | (values < 0).astype(np.uint8) << np.uint8(self.bits - 1)
        packed = codes if self.bits == 8 else _halves(codes)
        return np.concatenate([np.array([norm], "<f4").view(np.uint8), packed])

    def decode(self, code: np.ndarray, count: int) -> np.ndarray:
        norm, packed = code[:4].copy().view("<f4")[0], code[4:]
        if self.bits == 4:
            packed = np.stack([packed & 15, packed >> 4], 1).reshape(-1)[:count]
        table = np.ldexp(norm, np.arange(1 - self._levels, 1), dtype=np.float32)
        table = np.concatenate([np.zeros(1, np.float32), table])
        values: np.ndarray = np.concatenate([table, -table])[packed]
        return values

    @property
    def _levels(self) -> int:
        return int(2 ** (self.bits - 1) - 1)


@dataclass(frozen=True)
class Natural(NaturalDithering):
    """Natural compression: as natural dithering, but scaled by the power of two above the largest
    magnitude, so that powers of two stay exact."""

    factory = "natural"
    bits: int = 8

    def norm(self, magnitudes: np.ndarray) -> float:
        largest = super().norm(magnitudes)
        fraction, exponent = math.frexp(largest)
        return math.ldexp(1.0, exponent - (fraction == 0.5)) if largest else 0.0


def _halves(codes: np.ndarray) -> np.ndarray:
    pairs = np.concatenate([codes, np.zeros(len(codes) % 2, np.uint8)]).reshape(-1, 2)
    packed: np.ndarray = pairs[:, 0] | pairs[:, 1] << np.uint8(4)
    return packed
