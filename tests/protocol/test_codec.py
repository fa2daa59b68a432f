"""Block codecs: what they promise of the values that they change."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from _engine_tests import codec
from hypothesis import given, settings
from hypothesis import strategies as st

NAMES = [("natural", 0), ("qsgd", 2), ("qsgd", 4), ("qsgd", 8), ("terngrad", 0), ("sign", 0),
         ("one_bit", 0), ("int", 4), ("int", 8)]  # fmt: skip
UNBIASED = [("natural", 0), ("qsgd", 2), ("qsgd", 4), ("qsgd", 8)]
# (name, of sums): all sums are
NO_BIAS = [(name, False) for name in UNBIASED] + [(name, True) for name in NAMES]
SIZES = [1, 2, 7, 63, 64, 65, 100, 256, 1000]
LARGEST, SMALLEST = np.finfo(np.float32).max, np.finfo(np.float32).tiny


def made(name: tuple[str, int], seed: int = 0) -> codec.Codec:
    return codec.Codec(*name, seed=seed)


def both_ways(c: codec.Codec, block: np.ndarray, key: int = 1, **how: bool) -> np.ndarray:
    coded = c.encode(block, key, **how)
    assert len(coded) == c.coded_bytes(len(block), **how)
    return c.decode(coded, len(block), **how)


def normal(n: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(n) * scale).astype(np.float32)


@st.composite
def blocks(draw: st.DrawFn) -> np.ndarray:
    """Finite values of all magnitudes, with zeros of both signs and denormals."""
    n = draw(st.sampled_from(SIZES))
    random = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    spread = draw(st.sampled_from([0, 3, 30, 120]))
    scale = draw(st.sampled_from([0, -20, 20, -120, 110]))
    with np.errstate(over="ignore", under="ignore"):
        values = np.ldexp(
            random.standard_normal(n), random.integers(-spread, spread + 1, n) + scale
        )
        values = np.clip(values, -LARGEST / 4, LARGEST / 4).astype(np.float32)
    values[random.random(n) < draw(st.sampled_from([0, 0.1, 0.9]))] = draw(
        st.sampled_from([0.0, -0.0, 1e-45, -1e-40])
    )
    return values


def step_of(name: tuple[str, int], block: np.ndarray) -> float:
    """The last of 2^(bits-1) - 1 equal levels is the block's largest element. This formula is the
    documents'; the step that the encoder wrote is not asked."""
    bits = name[1] or 4  # of sums, where a rank sends one or two
    return max(float(np.abs(block).max()) / (2 ** (bits - 1) - 1), SMALLEST)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=25)
@given(block=blocks(), key=st.integers(0, 2**64 - 1), sums=st.booleans())
def test_every_implementation_does_the_same(
    name: tuple[str, int], block: np.ndarray, key: int, sums: bool
) -> None:
    c = made(name)
    results = []
    for implementation in codec.implementations():
        coded = c.encode(block, key, sums=sums, implementation=implementation)
        assert coded == c.encode(block, key, sums=sums, implementation=implementation)
        results.append((coded, c.decode(coded, len(block), sums=sums,
                                        implementation=implementation).tobytes()))  # fmt: skip
    assert results.count(results[0]) == len(results) > 1 or len(results) == 1


@given(block=blocks(), key=st.integers(0, 2**64 - 1))
def test_natural_takes_a_power_of_two_beside(block: np.ndarray, key: int) -> None:
    result = both_ways(made(("natural", 0)), block, key)
    above = np.ldexp(1.0, np.frexp(np.maximum(np.abs(block), SMALLEST))[1])
    below = above / 2
    smallest = max(float(above.max()) * 2.0**-126, SMALLEST)
    magnitude = np.abs(result).astype(np.float64)
    whole = np.abs(block) >= smallest
    assert ((magnitude == below) | (magnitude == above))[whole].all()
    assert np.isin(magnitude[~whole], [0, smallest]).all()
    powers = whole & (np.abs(block) == below)
    assert (magnitude == below)[powers].all()  # these it does not change
    assert (np.signbit(result) == np.signbit(block))[magnitude > 0].all()
    assert not result.view(np.uint32)[magnitude == 0].any()


@pytest.mark.parametrize("bits", [2, 4, 8])
@settings(max_examples=40)
@given(block=blocks(), key=st.integers(0, 2**64 - 1))
def test_levels_are_within_a_step(bits: int, block: np.ndarray, key: int) -> None:
    c = made(("qsgd", bits))
    result, step = both_ways(c, block, key), step_of(("qsgd", bits), block)
    assert (np.abs(result - block.astype(np.float64)) <= step * (1 + 1e-4)).all()
    assert np.abs(result).max() <= np.abs(block).max() * (1 + 1e-6) + SMALLEST


@pytest.mark.parametrize(
    ("name", "sums", "levels"),
    [(("qsgd", 2), False, 1), (("qsgd", 4), False, 7), (("qsgd", 8), False, 127),
     (("qsgd", 2), True, 1), (("qsgd", 8), True, 127), (("int", 4), False, 7),
     (("int", 8), False, 127), (("int", 8), True, 127), (("terngrad", 0), True, 7),
     (("sign", 0), True, 7), (("one_bit", 0), True, 7)],
)  # fmt: skip
def test_each_level_stands_for_itself(name: tuple[str, int], sums: bool, levels: int) -> None:
    """So many levels on either side of 0, and as far apart as the largest element has it: numbers
    that lie on them do not change, whatever is drawn."""
    block = np.arange(-levels, levels + 1, dtype=np.float32) * 8
    for key in range(9):
        assert both_ways(made(name), block, key, sums=sums).tolist() == block.tolist()


@pytest.mark.parametrize("bits", [4, 8])
@settings(max_examples=40)
@given(block=blocks(), key=st.integers(0, 2**64 - 1))
def test_integers_are_the_nearest(bits: int, block: np.ndarray, key: int) -> None:
    c = made(("int", bits))
    result, step = both_ways(c, block, key), step_of(("int", bits), block)
    assert (np.abs(result - block.astype(np.float64)) <= step * (0.5 + 1e-4)).all()


def test_ties_go_to_even_numbers() -> None:
    block = np.array([127, 0.5, 1.5, 2.5, -0.5, -1.5, -126.5], np.float32)
    assert both_ways(made(("int", 8)), block).tolist() == [127, 0, 2, 2, 0, -2, -126]


@pytest.mark.parametrize("n", SIZES)
def test_signs_have_the_block_s_mean(n: int) -> None:
    block = normal(n, n)
    result = both_ways(made(("sign", 0)), block)
    np.testing.assert_allclose(np.abs(result), np.abs(block).mean(), rtol=1e-6)
    assert (np.signbit(result) == np.signbit(block)).all()
    two = both_ways(made(("one_bit", 0)), block)
    for sign in (block < 0, block >= 0):
        if sign.any():
            np.testing.assert_allclose(two[sign], block[sign].mean(), rtol=1e-5)


@pytest.mark.parametrize(("name", "sums"), NO_BIAS)
def test_no_bias(name: tuple[str, int], sums: bool) -> None:
    """The mean of many draws is within five standard deviations of what was coded."""
    c, draws = made(name), 2000
    denormals = np.array([1e-45, 1e-40, 5e-39, -8e-39])
    for block in (np.concatenate([normal(90), normal(10, 1, 1e-30), denormals]), denormals):
        block = block.astype(np.float32)
        magnitude = np.abs(block.astype(np.float64))
        if name == ("natural", 0):
            between = np.maximum(magnitude, max(magnitude.max() * 2.0**-126, SMALLEST))
        else:
            between = np.full(len(block), step_of(name, block))
        total = np.zeros(len(block))
        for draw in range(draws):
            total += both_ways(c, block, codec.block_key(7, draw % 5, draw // 5), sums=sums)
        variance = np.minimum(magnitude, between) * between
        error = 5 * np.sqrt(variance / draws) + 3 * between / draws
        assert (np.abs(total / draws - block) <= error + 1e-6 * magnitude).all()


def test_natural_s_variance_is_an_eighth() -> None:
    block = normal(100_000)
    result = both_ways(made(("natural", 0)), block)
    assert np.square(result - block).sum() <= 1 / 8 * np.square(block).sum()


def test_terngrad_has_three_values_and_clips() -> None:
    block = normal(256, 3)
    block[5] = 100
    result = both_ways(made(("terngrad", 0)), block)
    assert len(np.unique(result)) == 3
    np.testing.assert_allclose(result.max(), 2.5 * np.sqrt(np.square(block).mean()), rtol=1e-5)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("n", SIZES)
def test_what_is_not_finite_is_not_coded(name: tuple[str, int], value: float, n: int) -> None:
    for at in {0, n // 2, n - 1}:
        block = normal(n)
        block[at] = value
        assert made(name).encode(block) is None
        assert made(name).encode(block, sums=True) is None


@pytest.mark.parametrize("name", NAMES)
def test_the_largest_numbers_stay_finite_or_are_not_coded(name: tuple[str, int]) -> None:
    block = np.full(256, LARGEST, np.float32)
    block[::2] *= -1
    for sums in (False, True):
        coded = made(name).encode(block, sums=sums)
        assert coded is None or np.isfinite(made(name).decode(coded, 256, sums=sums)).all()


@pytest.mark.parametrize("name", NAMES)
def test_coded_again_it_stays(name: tuple[str, int]) -> None:
    once = both_ways(made(name), normal(256), 1)
    again = both_ways(made(name), once, 2)
    if name[0] == "terngrad":
        assert (np.sign(again) == np.sign(once)).mean() > 0.5
    else:
        np.testing.assert_allclose(again, once, rtol=1e-6)


def test_random_numbers_depend_on_seed_rank_place_and_element() -> None:
    c, block = made(("qsgd", 2)), np.full(4096, 0.5, np.float32)
    block[0] = 1
    draws = [
        both_ways(c, block, codec.block_key(*key)) > 0.25
        for key in [(1, 0, 0), (2, 0, 0), (1, 1, 0), (1, 0, 1), (1, 0, 2**40)]
    ]
    for i, one in enumerate(draws):
        assert abs(one.mean() - 0.5) < 0.04
        assert abs((one[1:] == one[:-1]).mean() - 0.5) < 0.04
        for other in draws[:i]:
            assert abs((one == other).mean() - 0.5) < 0.04


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=25)
@given(data=st.data(), n=st.sampled_from(SIZES), sums=st.booleans())
def test_decoders_take_any_bytes_or_refuse(
    name: tuple[str, int], data: st.DataObject, n: int, sums: bool
) -> None:
    c = made(name)
    size = c.coded_bytes(n, sums)
    coded = data.draw(st.binary(min_size=size, max_size=size))
    try:
        block = c.decode(coded, n, sums)
    except ValueError:
        return
    if name[0] in ("natural", "sign", "one_bit") and not (sums and name[0] != "natural"):
        assert np.isfinite(block).all()


def test_decoders_refuse_scales_that_are_not_finite() -> None:
    for name in [("qsgd", 8), ("sign", 0), ("one_bit", 0)]:
        size = made(name).coded_bytes(256)
        for scale in (np.nan, np.inf):
            with pytest.raises(ValueError, match="no encoder"):
                made(name).decode(struct.pack("<f", scale).ljust(size, b"\0"), 256)
            if name[0] != "qsgd":  # two values
                with pytest.raises(ValueError, match="no encoder"):
                    made(name).decode(struct.pack("<ff", 1, scale).ljust(size, b"\0"), 256)
    for top in (0, 255):
        with pytest.raises(ValueError, match="no encoder"):
            made(("natural", 0)).decode(bytes([top]) + bytes(256), 256)


@pytest.mark.parametrize("wrong", [("natural", 8), ("qsgd", 3), ("qsgd", 0), ("int", 2), ("x", 0)])
def test_codecs_that_are_none(wrong: tuple[str, int]) -> None:
    with pytest.raises(ValueError, match=rf"no such codec: {wrong[0]} of {wrong[1]} bits"):
        made(wrong)
