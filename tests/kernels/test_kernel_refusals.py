"""Arguments of kernels that do not go together: each message says what would do."""

from __future__ import annotations

import re
import sys

import numpy as np
import pytest
from cuda_double import DLPack, device_array

from omnihvd import kernels
from omnihvd.kernels.sparsifier import Sparsifier, sparsify

pytestmark = pytest.mark.usefixtures("no_gpu")
ONES = np.ones(300, np.float32)


def encode(tensor, parcels) -> None:
    kernels.Coder(64).encode(tensor, parcels, (1, 8), 5, seed=0, who=0)


def codes(count: int) -> np.ndarray:
    """Device memory from the beginning of a line."""
    array = device_array(np.zeros(count + 128, np.uint8))
    begin = -array.ctypes.data % 128
    return array[begin : begin + count]


def elsewhere(array: np.ndarray, code: int) -> DLPack:
    """On another device."""
    made = DLPack(array, code)
    made.__class__ = type("Elsewhere", (DLPack,), {"__dlpack_device__": lambda _: (2, 1)})
    return made


def split(**how) -> None:
    norms, kept = device_array(np.zeros(2, np.float32)), device_array(np.zeros(1, np.int64))
    Sparsifier("float32", 256).split(device_array(ONES), norms=norms, kept=kept, **how)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: sparsify(device_array(np.ones((4, 64), np.float32)).T),
            "is not C-contiguous; make it so first (.contiguous(), cupy.ascontiguousarray)",
        ),
        (
            lambda: sparsify(device_array(ONES), rest=device_array(ONES.astype(np.float64))),
            "rest is of float64: it must be of float32",
        ),
        (
            lambda: sparsify(device_array(ONES), rest=elsewhere(ONES, 2)),
            "tensors of several devices: 0, and rest on 1",
        ),
        (
            lambda: sparsify(device_array(ONES), velocity=device_array(ONES)),
            "a velocity needs a residual, to which it is added",
        ),
        (lambda: split(largest=1), "`largest` needs memory of `keep`"),
        (
            lambda: Sparsifier("float16", 256).above(device_array(ONES), 0.1),
            "a gradient of float32, and kernels for float16",
        ),
        (
            lambda: encode(device_array(ONES), elsewhere(codes(640), 1)),
            "tensors of several devices: 0, 1",
        ),
        (lambda: encode(device_array(ONES), codes(639)), "parcels of 639 bytes, where 640 are"),
        (
            lambda: kernels.Coder(64).decode(
                codes(1280), device_array(ONES), (1, 8), 2, seed=3, count=2
            ),
            "count is 2, and out has blocks of 3 parcels",
        ),
    ],
)
def test_it_says_what_would_do(make, said) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(said)):
        make()


def test_without_cupy_it_says_what_to_install(monkeypatch) -> None:
    from omnihvd.kernels import build

    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(ImportError, match=r"omnihvd.kernels needs CuPy .*: pip install 'omnihvd"):
        build.cupy()
