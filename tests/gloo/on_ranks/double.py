"""The double of a Horovod library, as a rank uses it. argv: library, folder, rank, ranks, ..."""

from __future__ import annotations

import ctypes
import sys

import numpy as np

from omnihvd.intercept import gloo

SUM, MIN = 1, 3
TYPES = {
    "uint8": "h",
    "int8": "a",
    "uint16": "t",
    "int16": "s",
    "int32": "i",
    "int64": "l",
    "float16": "e",
    "float32": "f",
    "float64": "d",
    "bool": "b",
}

PATH, FOLDER = sys.argv[1:3]
RANK, RANKS = int(sys.argv[3]), int(sys.argv[4])
library = ctypes.CDLL(PATH)
library.allreduce.argtypes = [ctypes.c_char, ctypes.c_void_p, ctypes.c_long, ctypes.c_int]
library.allreduce.restype = ctypes.c_char_p
library.reducescatter.argtypes = [ctypes.c_char, ctypes.c_void_p, ctypes.c_void_p]
library.reducescatter.restype = ctypes.c_char_p


def hook() -> str | None:
    why = gloo._shim().omnihvd_gloo_hook(PATH.encode())
    return None if why is None else str(why.decode())


def begin(number: int = 0, rank: int = RANK, ranks: int = RANKS) -> None:
    """The ranks of the job from now on; number: how often they have changed before."""
    library.begin(f"{FOLDER}/{number}".encode(), rank, ranks)


def end() -> None:
    library.end()


def allreduce(x: np.ndarray, op: int = SUM) -> None:
    """In place. Raises RuntimeError with what was thrown."""
    why = library.allreduce(TYPES[str(x.dtype)].encode(), x.ctypes.data, x.size, op)
    if why is not None:
        raise RuntimeError(why.decode())


def reducescatter(x: np.ndarray, counts: list[int]) -> np.ndarray:
    """This rank's share, which is then the beginning of x. Raises as allreduce."""
    numbers = np.array(counts, np.int32)
    why = library.reducescatter(
        TYPES[str(x.dtype)].encode(), x.ctypes.data, ctypes.c_void_p(numbers.ctypes.data)
    )
    if why is not None:
        raise RuntimeError(why.decode())
    return x[: counts[RANK]]


def part(rank: int, count: int, dtype: str = "float32") -> np.ndarray:
    """Half of the blocks are zero; sums over a few ranks are exact."""
    index = np.arange(count)
    values = (index * 5 + rank * 17) % 29 + 1
    return np.where((index // 256 + rank) % 2 == 0, values, 0).astype(dtype)


def total(ranks: int, count: int, dtype: str = "float32") -> np.ndarray:
    return np.sum([part(rank, count, dtype) for rank in range(ranks)], axis=0, dtype=dtype)
