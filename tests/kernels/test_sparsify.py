"""sparsify() itself, on arrays of any framework, on a double of CuPy that emulates the kernels."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_double import DLPack, device_array, stream_at

from omnihvd.kernels import sparsify

pytestmark = pytest.mark.usefixtures("no_gpu")


def ramp() -> np.ndarray:
    """Three blocks of 32 and one of 4: of 1, 2, 3 and 4."""
    return np.repeat(np.arange(1, 5, dtype=np.float32), 32)[:100]


class Interface:
    """An array that has nothing but __cuda_array_interface__."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    @property
    def __cuda_array_interface__(self) -> dict:
        return {**self.array.__array_interface__, "stream": 1}


FORMS = {"cupy": device_array, "interface": Interface, "dlpack": lambda array: DLPack(array, 2)}


@pytest.mark.parametrize("form", FORMS)
def test_the_largest_are_sent_and_the_rest_is_kept(form):
    given = ramp().reshape(25, 4)
    gradient, rest = FORMS[form](given), device_array(np.full(100, 0.5, np.float32))
    norms = sparsify(gradient, largest=2, rest=rest, block_size=32, stream=0x700)
    result = np.asarray(gradient) if form == "cupy" else given
    assert np.array_equal(result.reshape(-1), ramp()), "the host does not wait"
    stream_at(0x700).synchronize()
    total, sent = ramp() + np.float32(0.5), np.repeat([0, 1, 1, 0], 32)[:100]
    assert np.array_equal(result.reshape(-1), total * sent)
    assert np.array_equal(np.asarray(rest), total * (1 - sent))
    squares = [32 * 1.5**2, 32 * 2.5**2, 32 * 3.5**2, 4 * 4.5**2]
    assert np.array_equal(np.asarray(norms), np.sqrt(squares).astype(np.float32))
    if form == "dlpack":
        assert gradient.stream == 0x700, "the array's framework must hear of the stream"


def test_bfloat16_by_threshold_and_nothing_kept():
    values = (ramp().view(np.uint32) >> 16).astype(np.uint16)
    sparsify(DLPack(values, 4), threshold=11.4, scale=0.5, block_size=32)
    stream_at(0).synchronize()
    result = (values.astype(np.uint32) << 16).view(np.float32)
    # Norms: 5.7, 11.3, 17.0, 8.
    assert np.array_equal(result, np.repeat(np.float32([0, 0, 1.5, 0]), 32)[:100])


@pytest.mark.parametrize("dtype", [np.bool_, np.uint8])
def test_somebody_s_choice_and_momentum(dtype):
    gradient = device_array(ramp().astype(np.float16))
    rest, velocity = (device_array(np.full(100, value, np.float32)) for value in (1, 8))
    keep = device_array(np.array([0, 1, 0, 1], dtype))
    sparsify(gradient, keep=keep, rest=rest, velocity=velocity, momentum=0.5, block_size=32)
    stream_at(0).synchronize()
    moved, sent = ramp() + 4, np.repeat([0, 1, 0, 1], 32)[:100]
    assert np.array_equal(np.asarray(velocity), moved * (1 - sent))
    assert np.array_equal(np.asarray(rest), (1 + moved) * (1 - sent))
    assert np.array_equal(np.asarray(gradient), (1 + moved) * sent)


def test_nothing_and_one_element():
    empty = device_array(np.zeros(0, np.float32))
    assert len(sparsify(empty, largest=1, rest=empty)) == 0
    one = device_array(np.array([-3], np.float32))
    norms = sparsify(one, largest=1)
    stream_at(0).synchronize()
    assert (norms[0], one[0]) == (3, -3)


ONES = np.ones(100, np.float32)


@pytest.mark.parametrize(
    "gradient, how, error, message",
    [
        (ONES, {}, TypeError, "host memory.*move it to a CUDA device"),
        (device_array(np.ones(9)), {}, TypeError, "float64 is not supported; one of"),
        (device_array(ONES), {"block_size": 48}, ValueError, "block_size is 48; it must be one of"),
        (device_array(ONES), {"largest": 0}, ValueError, "largest is 0.*at least 1, and 1 at most"),
        (device_array(ONES), {"largest": 2}, ValueError, "largest is 2"),
        (
            device_array(ONES),
            {"largest": 1, "keep": device_array(ONES)},
            ValueError,
            "both say which",
        ),
        (device_array(ONES), {"keep": device_array(ONES)}, TypeError, "keep is of float32"),
        (
            device_array(ONES),
            {"keep": device_array(np.ones(2, np.uint8))},
            ValueError,
            "keep has 2 elements: it must have 1",
        ),
        (
            device_array(ONES),
            {"rest": device_array(ONES[1:])},
            ValueError,
            "rest has 99 elements: it must have 100",
        ),
        (device_array(ONES), {"velocity": device_array(ONES)}, ValueError, "needs a residual"),
        (device_array(ONES), {"momentum": 0.9}, ValueError, "it needs a velocity"),
    ],
)
def test_refuses(gradient, how, error, message):
    with pytest.raises(error, match=message):
        sparsify(gradient, **how)
