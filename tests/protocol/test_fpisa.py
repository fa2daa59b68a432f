"""FPISA's sums on integer registers: against exact sums, and against a model of its rules."""

from __future__ import annotations

import math

import numpy as np
import pytest
from _engine_tests import arithmetic
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

BIAS = 150  # an exponent's register, of the last bit of the significand
NUMBERS = st.floats(width=32, allow_nan=False, allow_infinity=False)
NEAR = st.integers(-(1 << 24), 1 << 24).map(lambda n: float(np.float32(n * 2.0**-12)))


def rows_of(numbers: st.SearchStrategy, most: int = 12) -> st.SearchStrategy[np.ndarray]:
    shapes = st.tuples(st.integers(1, most), st.integers(1, 9))
    return shapes.flatmap(lambda shape: npst.arrays(np.float32, shape, elements=numbers))


def exact(column: np.ndarray) -> float:
    """float64's: correctly rounded, whatever the numbers."""
    return math.fsum(float(x) for x in column)


def ulp(x: float) -> float:
    return float(np.spacing(np.float32(min(abs(x), 3e38))))


def taken_apart(x: np.float32) -> tuple[int, int]:
    bits = int(np.float32(x).view(np.uint32))
    exponent, fraction = bits >> 23 & 255, bits & 0x7FFFFF
    magnitude = fraction + (exponent > 0) * (1 << 23)
    return max(exponent, 1), -magnitude if bits >> 31 else magnitude


def modelled(column: np.ndarray, approximate: bool) -> tuple[int, int]:
    """The registers, by the paper's rules, of numbers; Python's integers have no end."""
    exponent, mantissa = taken_apart(column[0])
    for x in column[1:]:
        its, more = taken_apart(x)
        if approximate:
            if its - exponent > 7:
                exponent, mantissa = its, more
                continue
            more = more << its - exponent if its > exponent else more >> exponent - its
            mantissa = min(max(mantissa + more, -(1 << 31)), (1 << 31) - 1)
            continue
        top = max(exponent, its)
        mantissa >>= top - exponent
        more >>= top - its
        exponent = top
        if not -(1 << 31) <= mantissa + more < 1 << 31:
            exponent, mantissa, more = exponent + 1, mantissa >> 1, more >> 1
        mantissa += more
    return exponent, mantissa


@pytest.mark.parametrize("approximate", [False, True])
@given(rows=rows_of(NUMBERS) | rows_of(NEAR, 40))
def test_registers_are_those_of_the_rules(approximate: bool, rows: np.ndarray) -> None:
    exponents, mantissas, _ = arithmetic.fpisa_sum(rows, approximate)
    model = [modelled(column, approximate) for column in rows.T]
    assert list(zip(exponents.tolist(), mantissas.tolist())) == model


@given(rows=rows_of(NUMBERS) | rows_of(NEAR, 40))
def test_each_addition_loses_less_than_a_unit_of_the_register(rows: np.ndarray) -> None:
    exponents, mantissas, floats = arithmetic.fpisa_sum(rows)
    for column, exponent, mantissa, read in zip(rows.T, exponents, mantissas, floats):
        unit = math.ldexp(1, int(exponent) - BIAS)
        # Numbers halved to fit lose one more, in both.
        assert abs(int(mantissa) * unit - exact(column)) <= 3 * (len(column) - 1) * unit
        if math.isfinite(read):
            assert abs(int(mantissa) * unit - float(read)) <= ulp(read)


@given(x=npst.arrays(np.float32, 20, elements=st.floats(width=32)))
@pytest.mark.parametrize("approximate", [False, True])
def test_one_number_stays_what_it_is(approximate: bool, x: np.ndarray) -> None:
    floats = arithmetic.fpisa_sum(x[None], approximate)[2]
    np.testing.assert_array_equal(floats, x)


@given(x=npst.arrays(np.float32, 8, elements=NUMBERS))
def test_zeros_add_nothing(x: np.ndarray) -> None:
    rows = np.stack([np.zeros_like(x), x, np.zeros_like(x)])
    for approximate in (False, True):
        np.testing.assert_array_equal(arithmetic.fpisa_sum(rows, approximate)[2], x)


def test_the_headroom_holds_128_of_the_largest_significand() -> None:
    most = np.float32(2 - 2.0**-23)
    for count, grows in ((128, 0), (129, 1)):
        exponents, mantissas, floats = arithmetic.fpisa_sum(np.full((count, 1), most, np.float32))
        assert exponents[0] == 127 + grows
        assert floats[0] == pytest.approx(count * most, rel=2e-7)
    # The approximate one saturates instead.
    _, mantissas, _ = arithmetic.fpisa_sum(np.full((140, 1), most, np.float32), True)
    assert mantissas[0] == 2**31 - 1


@pytest.mark.parametrize(("power", "kept"), [(7, True), (8, False)])
def test_the_approximate_sum_is_overwritten_beyond_its_headroom(power: int, kept: bool) -> None:
    rows = np.array([[1.0], [2.0**power]], np.float32)
    assert arithmetic.fpisa_sum(rows, True)[2][0] == 2.0**power + kept
    assert arithmetic.fpisa_sum(rows)[2][0] == 2.0**power + 1


NAN, INF = math.nan, math.inf


@pytest.mark.parametrize("approximate", [False, True])
@pytest.mark.parametrize(
    ("column", "total"),
    [([NAN, 1], NAN), ([1, NAN, INF], NAN), ([INF, 3e38, INF], INF), ([-INF, 1], -INF),
     ([INF, -INF], NAN), ([1, INF, -INF, 5], NAN), ([3e38, 3e38], INF), ([-3e38, -3e38], -INF),
     ([1e-45, -1e-45], 0), ([1e-45] * 5, 7e-45), ([1.2e-38, -1.1e-38], 1e-39)],
)  # fmt: skip
def test_borders(approximate: bool, column: list[float], total: float) -> None:
    rows = np.array(column, np.float32)[:, None]
    got = arithmetic.fpisa_sum(rows, approximate)[2][0]
    with np.errstate(all="ignore"):
        expected = rows[:, 0].sum(dtype=np.float32) if total == 1e-39 else np.float32(total)
    np.testing.assert_array_equal(got, expected)


def test_gradients() -> None:
    """Sizes are nearly normal over eight powers of two. The exact variant's error is of the order
    of float32's own, and the approximate one's is not."""
    random = np.random.default_rng(1)
    rows = (random.standard_normal((8, 20000)) * 2.0 ** random.integers(-8, 0, 20000)).astype("f4")
    true = rows.sum(0, dtype=np.float64)

    def error(sums: np.ndarray) -> float:
        return float(np.sqrt(np.mean((sums - true) ** 2)) / np.sqrt(np.mean(true**2)))

    ordinary = error(np.add.accumulate(rows, dtype=np.float32)[-1])
    assert error(arithmetic.fpisa_sum(rows)[2]) < 20 * ordinary
    assert error(arithmetic.fpisa_sum(rows, True)[2]) > 50 * ordinary
