"""Signs, a bit an element: by majority vote, SignSGD and Signum of Bernstein et al., "signSGD:
compressed optimisation for non-convex problems" (ICML 2018); with a scale, EF-SignSGD of
Karimireddy et al., "Error feedback fixes SignSGD" (ICML 2019), and Seide et al., "1-Bit Stochastic
Gradient Descent" (Interspeech 2014).

A part's code: the scales (f32), if any; a byte, 1 if any element is 0; a bit an element, 1 if it is
negative; and where any is 0, a bit an element, 1 if it is not. (0 thus stays 0, and unused rows of
an embedding keep their values.)
"""

from __future__ import annotations

from dataclasses import dataclass

from omnihvd.compression.arrays import np
from omnihvd.compression.rules import CodedRule


@dataclass(frozen=True)
class ScaledSigns(CodedRule):
    """Each element's sign, times a scale."""

    def scales(self, values: np.ndarray) -> np.ndarray:
        """float32: the values for elements above 0 and below 0; empty for 1 and -1."""
        raise NotImplementedError

    def encode(self, values: np.ndarray) -> np.ndarray:
        nonzero = values != 0
        some = not nonzero.all()
        return np.concatenate(
            [
                self.scales(values).astype("<f4").view(np.uint8),
                np.array([some], np.uint8),
                np.packbits(values < 0),
                np.packbits(nonzero) if some else np.zeros(0, np.uint8),
            ]
        )

    def decode(self, code: np.ndarray, count: int) -> np.ndarray:
        size, bits = 4 * len(self.scales(np.ones(1, np.float32))), -(-count // 8)
        up, down = code[:size].copy().view("<f4") if size else np.array([1, -1], np.float32)
        rest = code[size + 1 :]
        values: np.ndarray = np.where(np.unpackbits(rest[:bits], count=count), down, up)
        if code[size]:
            values = values * np.unpackbits(rest[bits:], count=count)
        return values.astype(np.float32)


@dataclass(frozen=True)
class EfSign(ScaledSigns):
    """Each element's sign, times the mean of the part's absolute values."""

    factory = "ef_sign"

    def scales(self, values: np.ndarray) -> np.ndarray:
        mean = np.abs(values).mean(dtype=np.float64) if len(values) else 0.0
        return np.array([mean, -mean])


@dataclass(frozen=True)
class OneBitSgd(ScaledSigns):
    """The mean of the part's elements of the same sign."""

    factory = "one_bit_sgd"

    def scales(self, values: np.ndarray) -> np.ndarray:
        sides = [values[values > 0], values[values < 0]]
        return np.array([side.mean(dtype=np.float64) if len(side) else 0.0 for side in sides])


@dataclass(frozen=True)
class SignSgd(ScaledSigns):
    """The sign of each element. The result is the sign of the ranks' sum, -1, 0 or 1, for any size
    of the gradient: the learning rate is the step."""

    factory = "sign_sgd"
    error_feedback = None

    def scales(self, values: np.ndarray) -> np.ndarray:
        return np.zeros(0)

    def summed(self, total: np.ndarray) -> np.ndarray:
        votes: np.ndarray = np.sign(total)
        return votes


@dataclass(frozen=True)
class Signum(SignSgd):
    """The same of each element's momentum: m = beta m + (1 - beta) g."""

    factory = "signum"
    beta: float

    def memory(self, name: str, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
        return {"momentum": np.zeros(int(np.prod(shape)), np.float32)}

    def values(self, gradient: np.ndarray, memory: dict[str, np.ndarray]) -> np.ndarray:
        momentum = memory["momentum"] * np.float32(self.beta)
        momentum += gradient * np.float32(1 - self.beta)
        memory["momentum"] = np.nan_to_num(momentum, nan=0.0, posinf=0.0, neginf=0.0)
        return momentum
