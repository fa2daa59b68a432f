"""Functions of NumPy's arrays for rules and split.py; torch_ops.py has the same for PyTorch's."""

from __future__ import annotations

from typing import Any

import numpy as np

abs, sign, log, isfinite, where = np.abs, np.sign, np.log, np.isfinite, np.where
concatenate, places, contiguous = np.concatenate, np.flatnonzero, np.ascontiguousarray
CHUNK = 1 << 16  # elements: their copies stay in the processor's cache


def quiet() -> Any:
    """Around calls: NaN and infinity are foreseen."""
    return np.errstate(all="ignore")


def on(array: np.ndarray, like: np.ndarray | None = None) -> np.ndarray:
    """A NumPy array as one beside `like`."""
    return array


def device(x: np.ndarray) -> str:
    return "cpu"


def on_device(x: np.ndarray) -> bool:
    """Whether each number that is read of it makes the host wait."""
    return False


numpy = on


def by_kernels(*_: Any) -> None:
    """There are none."""


def wide(x: np.ndarray) -> np.ndarray:
    """x, in float32 if its dtype is narrower."""
    return x.astype(np.float32) if x.dtype.itemsize == 2 else x


def zeros(like: np.ndarray) -> np.ndarray:
    """In wide()'s dtype."""
    return np.zeros(like.shape, np.float32 if like.dtype.itemsize == 2 else like.dtype)


def result_for(gradient: np.ndarray) -> np.ndarray:
    """The array for what is sent of it."""
    return np.empty(gradient.shape, gradient.dtype)


def cast(x: np.ndarray, like: np.ndarray) -> np.ndarray:
    return x.astype(like.dtype, copy=False)


def clipped(gradient: np.ndarray, factor: Any) -> np.ndarray:
    product: np.ndarray = gradient * factor(norms(gradient.reshape(1, -1))[0]).astype(
        gradient.dtype
    )
    return product


def norms(rows: np.ndarray) -> np.ndarray:
    """Each row's L2 norm."""
    rows = wide(rows)
    squares: np.ndarray = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    return squares


def count(x: np.ndarray) -> int:
    """How many are not 0."""
    return int(np.count_nonzero(x != 0))  # several times as fast as without the comparison


def kth_largest(x: np.ndarray, k: int) -> Any:
    """NaN if a NaN is among them. x: not negative."""
    if np.isnan(x.sum()):
        return np.nan
    return -np.partition(-x, k - 1)[k - 1]  # partition() of many zeros is slow at the other end


def magnitudes(x: np.ndarray) -> np.ndarray:
    """How many have each exponent and first 3 bits of the fraction, as float32: 2048 counts."""
    bits = np.abs(x).astype(np.float32).view(np.int32) >> 20
    return np.bincount(bits, minlength=2048)


def excess(over: np.ndarray) -> tuple[float, float, float]:
    """How many of these numbers are above 0, and the sum and the sum of squares of those; changes
    `over`."""
    np.maximum(over, 0, out=over)
    squares = np.einsum("i,i->", over, over)  # dot() waits for threads of its own
    return float(np.count_nonzero(over > 0)), float(over.sum()), float(squares)


def above(total: np.ndarray, limit: float) -> np.ndarray:
    """The elements with absolute values above `limit`, 0 elsewhere."""
    return np.where(np.abs(total) <= limit, total.dtype.type(0), total)


def copy_above(total: np.ndarray, limit: float, out: np.ndarray) -> None:
    for at in range(0, len(total), CHUNK):
        out[at : at + CHUNK] = above(total[at : at + CHUNK], limit)


def mask(chosen: np.ndarray, size: int, like: Any) -> np.ndarray:
    """A bool for each of `size` parts: whether it is among the chosen numbers."""
    keep = np.zeros(size, bool)
    keep[chosen] = True
    return keep


def take(rows: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    return rows.take(chosen, 0)


def put(rows: np.ndarray, chosen: np.ndarray, values: Any) -> None:
    rows[chosen] = values


def subtract(total: np.ndarray, sent: np.ndarray) -> np.ndarray:
    """total -= sent. Where sent is not finite, 0 is left."""
    total -= sent
    if not np.isfinite(total.sum()):
        total[~np.isfinite(total)] = 0
    return total


def orthonormal(matrix: np.ndarray) -> np.ndarray:
    return np.linalg.qr(matrix)[0]
