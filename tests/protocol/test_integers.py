"""Floats as integers of a common scale: exact where they fit, else bounded, and never too large."""

from __future__ import annotations

import math

import numpy as np
import pytest
from _engine_tests import arithmetic, codec
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

IMPLEMENTATIONS = [name for name in codec.implementations() if name != "avx512"]
NUMBERS = st.floats(width=32, allow_nan=False, allow_infinity=False)
SIMILAR = st.floats(-8, 8, width=32)
SIZES = st.sampled_from([0, 1, 2, 7, 8, 63, 64, 65, 130])
BLOCKS = SIZES.flatmap(
    lambda n: (
        npst.arrays(np.float32, n, elements=NUMBERS) | npst.arrays(np.float32, n, elements=SIMILAR)
    )
)


def rows_of(elements: st.SearchStrategy) -> st.SearchStrategy[np.ndarray]:
    """Those of 1 to 9 workers."""
    shapes = st.tuples(st.integers(1, 9), st.sampled_from([1, 3, 8, 65]))
    return shapes.flatmap(lambda shape: npst.arrays(np.float32, shape, elements=elements))


def scale(exponent: int, bits: int) -> float:
    """An integer's unit."""
    return math.ldexp(1, exponent - 126 - bits)


def summed(rows: np.ndarray, name: str = "portable") -> tuple[np.ndarray, int, int]:
    """The sum of the rows' integers, with their exponent and bits."""
    exponent = max(arithmetic.exponent_of(row, name) for row in rows)
    bits = arithmetic.bits_for(len(rows))
    integers = [arithmetic.to_integers(row, exponent, bits, name)[0] for row in rows]
    total = np.sum(integers, 0, dtype=np.int64)
    assert abs(total).max(initial=0) < 2**31
    return total, exponent, bits


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 5, 1000, 1024, 1025, 2**20, 2**30])
def test_bits_are_as_many_as_fit(workers: int) -> None:
    bits = arithmetic.bits_for(workers)
    assert workers * 2**bits < 2**31
    assert bits == 30 or workers * 2 ** (bits + 1) >= 2**31


@given(block=BLOCKS)
def test_the_exponent_is_that_of_the_largest(block: np.ndarray) -> None:
    largest = float(abs(block).max(initial=0))
    exponents = {arithmetic.exponent_of(block, name) for name in IMPLEMENTATIONS}
    assert len(exponents) == 1
    exponent = exponents.pop()
    assert 1 <= exponent <= 254
    assert largest < math.ldexp(1, exponent - 126)
    assert exponent == 1 or largest >= math.ldexp(1, exponent - 127)


@given(block=BLOCKS, above=st.integers(0, 60), bits=st.integers(0, 30))
def test_an_integer_is_the_nearest(block: np.ndarray, above: int, bits: int) -> None:
    """Whatever the block's own exponent below the common one; in each implementation alike."""
    exponent = min(254, arithmetic.exponent_of(block) + above)
    unit = scale(exponent, bits)
    for name in IMPLEMENTATIONS:
        integers, numbers = arithmetic.to_integers(block, exponent, bits, name)
        assert numbers
        expected = [min(2**bits, max(-(2**bits), round(float(x) / unit))) for x in block]
        assert integers.tolist() == expected


@given(block=BLOCKS)
def test_numbers_larger_than_the_exponent_says_become_the_largest(block: np.ndarray) -> None:
    integers, _ = arithmetic.to_integers(block, 1, 20)
    assert abs(integers.astype(np.int64)).max(initial=0) <= 2**20


@given(block=BLOCKS, above=st.integers(0, 60), bits=st.integers(1, 30), seed=st.integers(0, 99))
def test_a_code_is_a_power_of_two_beside_the_number(
    block: np.ndarray, above: int, bits: int, seed: int
) -> None:
    exponent = min(254, arithmetic.exponent_of(block) + above)
    units = np.abs(block.astype(np.float64)) / scale(exponent, bits)
    made = [
        arithmetic.to_codes(block, exponent, bits, seed, 3, 7, name) for name in IMPLEMENTATIONS
    ]
    assert all(numbers and codes.tobytes() == made[0][0].tobytes() for codes, numbers in made)
    for name in IMPLEMENTATIONS:
        integers = arithmetic.from_codes(made[0][0], name)
        for x, unit, integer in zip(block, units, integers.tolist()):
            assert integer == 0 or (integer < 0) == (x < 0)
            below = 2 ** math.floor(math.log2(unit)) if unit >= 1 else 0
            assert abs(integer) in (below, 2 * below or math.ceil(unit)), (unit, integer)
            if unit == below:
                assert abs(integer) == below  # exact


@pytest.mark.parametrize("units", [0.125, 0.75, 1.5, 5.5, 2.0**20 * 1.25])
def test_codes_have_no_bias(units: float) -> None:
    block = np.full(256, units * scale(127, 24), np.float32)
    drawn = [
        arithmetic.from_codes(arithmetic.to_codes(block, 127, 24, 5, 0, i)[0]) for i in range(100)
    ]
    power = 2.0 ** math.floor(math.log2(units)) if units >= 1 else 1.0
    assert abs(np.mean(drawn) - units) < 6 * power / 2 / math.sqrt(256 * 100)


def test_any_byte_is_an_integer_that_fits() -> None:
    codes = np.arange(256, dtype=np.uint8)
    for name in IMPLEMENTATIONS:
        integers = arithmetic.from_codes(codes, name).tolist()
        assert (
            integers[:3] == [0, 1, 2] and integers[31] == 2**30 and integers[128 + 31] == -(2**30)
        )
        assert max(integers) == 2**30 and min(integers) == -(2**30)


def test_codes_of_what_is_no_number_are_zero() -> None:
    block = np.array([math.nan, math.inf, -math.inf, 1.0, -0.0], np.float32)
    for name in IMPLEMENTATIONS:
        codes, numbers = arithmetic.to_codes(block, 127, 20, 1, 0, 0, name)
        assert not numbers and codes.tolist() == [0, 0, 0, 20, 0]


@given(rows=rows_of(NUMBERS) | rows_of(SIMILAR))
def test_a_sum_is_within_the_bound(rows: np.ndarray) -> None:
    """Half a unit for each worker, and the rounding of the result."""
    total, exponent, bits = summed(rows)
    results = [arithmetic.to_floats(total, exponent, bits, name) for name in IMPLEMENTATIONS]
    for result in results:
        assert result.tobytes() == results[0].tobytes()
    bound = len(rows) * scale(exponent, bits) / 2
    for column, got in zip(rows.T, results[0]):
        exact = math.fsum(float(x) for x in column)
        if abs(exact) >= 2.0**128 - 2.0**103:
            continue  # infinity, as in float32
        rounding = float(np.spacing(np.float32(min(abs(exact), 3e38))))
        assert abs(float(got) - exact) <= bound + rounding


@given(rows=rows_of(st.integers(-(2**20), 2**20).map(lambda n: n * 2.0**-10)), seed=st.integers(0))
def test_numbers_of_the_scale_are_exact_in_any_order(rows: np.ndarray, seed: int) -> None:
    total, exponent, bits = summed(rows)
    shuffled = np.random.default_rng(seed).permutation(rows)
    assert summed(shuffled)[0].tolist() == total.tolist()
    exact = rows.sum(0, dtype=np.float64)
    np.testing.assert_array_equal(
        arithmetic.to_floats(total, exponent, bits), exact.astype(np.float32)
    )


@pytest.mark.parametrize("largest", [3.4028235e38, 1.0, 1.9999999, 1.17549435e-38, 1e-45])
@pytest.mark.parametrize("workers", [1, 2, 3, 7, 8, 9])
def test_all_at_their_largest_do_not_overflow(workers: int, largest: float) -> None:
    for sign in (1, -1):
        rows = np.full((workers, 5), sign * largest, np.float32)
        total, exponent, bits = summed(rows)
        with np.errstate(over="ignore"):
            expected = (workers * rows[0].astype(np.float64)).astype(np.float32)
        got = arithmetic.to_floats(total, exponent, bits)
        np.testing.assert_allclose(got, expected, rtol=workers * 2.0**-bits)


@given(
    rows=rows_of(st.sampled_from([math.nan, math.inf, -math.inf, 3e38, 1.0, -0.0, 0.0])),
    seed=st.integers(0),
)
def test_what_is_no_number_is_what_floats_make_of_it(rows: np.ndarray, seed: int) -> None:
    for row in rows:
        for name in IMPLEMENTATIONS:
            integers, numbers = arithmetic.to_integers(row, 254, 20, name)
            assert numbers == np.isfinite(row).all()
            assert not integers[~np.isfinite(row)].any()
    sums = np.arange(rows.shape[1], dtype=np.float32)
    got = arithmetic.with_no_numbers(rows, sums, added=True)
    shuffled = np.random.default_rng(seed).permutation(rows)
    for added in (True, False):  # by slots in the network, and by the engine's aggregators
        same = arithmetic.with_no_numbers(shuffled, sums, added)
        assert same.tobytes() == got.tobytes()
    with np.errstate(invalid="ignore"):
        expected = np.where(np.isfinite(rows), 0, rows).sum(0)
    np.testing.assert_array_equal(got, np.where(np.isfinite(expected), sums, expected))
