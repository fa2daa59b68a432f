"""Sums of codes that cannot be added: each rank owns an equal part of a tensor.

    encode all parts | all to all | decode one's own part, add, encode | gather | decode

So 2 (N-1)/N codes of a tensor travel by each of N ranks, as in a ring; GRACE gathers all ranks'
codes everywhere, which are N-1. Both sides may keep what their encoding loses for the next step, as
in Seide et al., "1-Bit Stochastic Gradient Descent" (Interspeech 2014). NumPy only: torch_parts.py
and tensorflow_parts.py let Horovod carry the codes.

A code on its way: its length in bytes, as a little-endian int64, and the code. A part with a NaN or
an infinity travels as float32, and its length is told as -1 - length.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    import numpy as np

LENGTH = 8  # bytes


class CodesParts(Protocol):
    """All values are flat float32, codes flat uint8."""

    def encode(self, values: np.ndarray) -> np.ndarray: ...

    def decode(self, code: np.ndarray, count: int) -> np.ndarray: ...

    def summed(self, total: np.ndarray) -> np.ndarray:
        """Returns the values to send back. total: the sum, or the average, of the ranks' values."""


class Contribution(NamedTuple):
    code: np.ndarray  # of all parts
    splits: np.ndarray  # int32: its bytes for each rank
    values: np.ndarray  # what the ranks will decode


def part_of(count: int, rank: int, ranks: int) -> slice:
    return slice(count * rank // ranks, count * (rank + 1) // ranks)


def contribution(rule: CodesParts, values: np.ndarray, ranks: int) -> Contribution:
    import numpy as np

    parts = [values[part_of(len(values), rank, ranks)] for rank in range(ranks)]
    codes = [_packed(rule, part) for part in parts]
    splits = np.array([len(code) for code in codes], np.int32)
    code = np.concatenate(codes)
    sizes = [len(part) for part in parts]
    return Contribution(code, splits, np.concatenate(list(_unpacked(rule, code, sizes))))


def summed(
    rule: CodesParts, codes: np.ndarray, size: int, scale: float, rest: np.ndarray | None
) -> np.ndarray:
    """The code of one's own part, of `size` elements, of all ranks' codes of it, one behind the
    other. The sum is multiplied by `scale`. rest: what the sums before have lost; updated."""
    import numpy as np

    total = np.zeros(size, np.float32)
    at = 0
    while at < len(codes):
        (part,) = _unpacked(rule, codes[at:], [size])
        at += _bytes_at(codes, at)
        total += part
    total = rule.summed(total * np.float32(scale))
    if rest is None:
        return _packed(rule, total)
    total = total + rest
    code = _packed(rule, total)
    (sent,) = _unpacked(rule, code, [size])
    with np.errstate(invalid="ignore"):
        rest[:] = np.nan_to_num(total - sent, nan=0.0, posinf=0.0, neginf=0.0)
    return code


def opened(rule: CodesParts, codes: np.ndarray, count: int, ranks: int) -> np.ndarray:
    """The result, of all ranks' summed()."""
    import numpy as np

    sizes = []
    for rank in range(ranks):
        part = part_of(count, rank, ranks)
        sizes.append(part.stop - part.start)
    return np.concatenate(list(_unpacked(rule, codes, sizes)))


def _packed(rule: CodesParts, values: np.ndarray) -> np.ndarray:
    import numpy as np

    finite = bool(np.isfinite(values).all())
    code = rule.encode(values) if finite else values.astype("<f4").view(np.uint8)
    length = np.array([len(code) if finite else -1 - len(code)], "<i8")
    return np.concatenate([length.view(np.uint8), code])


def _unpacked(rule: CodesParts, codes: np.ndarray, sizes: list[int]) -> Iterator[np.ndarray]:
    """The values of codes one behind the other, of so many elements each."""
    at = 0
    for size in sizes:
        end = at + _bytes_at(codes, at)
        code = codes[at + LENGTH : end]
        yield code.copy().view("<f4") if _length(codes, at) < 0 else rule.decode(code, size)
        at = end


def _bytes_at(codes: np.ndarray, at: int) -> int:
    length = _length(codes, at)
    return LENGTH + (length if length >= 0 else -1 - length)


def _length(codes: np.ndarray, at: int) -> int:
    return int(codes[at : at + LENGTH].copy().view("<i8")[0])
