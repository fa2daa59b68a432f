"""Sets of numbers: what is written is read again, in few bits, and nothing else is believed."""

from __future__ import annotations

from math import lgamma, log

import numpy as np
import pytest
from _engine_tests import protocol
from hypothesis import given
from hypothesis import strategies as st

write, read = protocol.write_numbers, protocol.read_numbers

# Ranges around the borders of bytes and words, and any; numbers few, many or all.
RANGES = st.sampled_from([1, 2, 7, 8, 9, 63, 64, 65, 256, 1 << 32]) | st.integers(1, 1 << 32)


@st.composite
def sets(draw: st.DrawFn) -> tuple[list[int], int]:
    """Numbers and the range that they are below."""
    range_ = draw(RANGES)
    share = draw(st.sampled_from([0, 1e-3, 0.1, 0.3, 0.5, 0.9, 1]))
    random = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    count = min(range_, round(share * range_), 300)
    if range_ < 1000:
        numbers = random.permutation(range_)[:count]
    else:
        numbers = np.unique(random.integers(0, range_, count))
    ends = draw(st.sets(st.sampled_from([0, range_ - 1])))
    return sorted(ends.union(numbers.tolist())), range_


@given(case=sets())
def test_sets(case: tuple[list[int], int]) -> None:
    numbers, range_ = case
    data = write(numbers, range_)
    assert read(data, len(numbers), range_) == numbers
    if len(numbers) in (0, range_):
        assert data == b""
    assert len(data) <= (range_ + 7) // 8


@pytest.mark.parametrize("share", [0.3, 0.05, 0.01, 1e-3, 1e-4])
def test_near_the_entropy(share: float) -> None:
    range_ = 1 << 20
    numbers = np.flatnonzero(np.random.default_rng(1).random(range_) < share)
    k = len(numbers)
    entropy = (lgamma(range_ + 1) - lgamma(k + 1) - lgamma(range_ - k + 1)) / log(2)
    assert 8 * len(write(numbers.tolist(), range_)) <= entropy + 0.6 * k + 16


@given(range_=st.integers(1, 3000), share=st.floats(0, 1),
       random=st.randoms(use_true_random=False))  # fmt: skip
def test_any_bytes_are_refused_or_are_what_is_written(
    range_: int, share: float, random: object
) -> None:
    """So each set has one form, and numbers ascend below the range whatever the bytes are."""
    count = round(share * range_)
    size = len(write(list(range(count)), range_))
    data = random.getrandbits(8 * size).to_bytes(size, "little") if size else b""
    numbers = read(data, count, range_)
    if numbers is None:
        return
    assert len(numbers) == count and all(a < b for a, b in zip(numbers, numbers[1:]))
    assert not numbers or numbers[-1] < range_
    assert write(numbers, range_) == data


@given(case=sets(), flip=st.integers(0, 1 << 20))
def test_a_flipped_bit_is_refused_or_another_set(case: tuple[list[int], int], flip: int) -> None:
    numbers, range_ = case
    data = bytearray(write(numbers, range_))
    if not data:
        return
    data[flip // 8 % len(data)] ^= 1 << flip % 8
    other = read(bytes(data), len(numbers), range_)
    assert other is None or (other != numbers and write(other, range_) == data)
