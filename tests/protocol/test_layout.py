"""How blocks are dealt over aggregators and slots."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from _engine_tests import protocol
from hypothesis import given
from hypothesis import strategies as st
from network import STORAGE


@st.composite
def shapes(draw: st.DrawFn) -> Any:
    block_size = draw(st.integers(1, 300))
    stripe = draw(st.integers(1, 9))
    blocks = draw(st.integers(0, 2000))
    return protocol.Shape(
        count=max(0, blocks * block_size - draw(st.integers(0, block_size - 1))),
        dtype=draw(st.sampled_from(list(STORAGE))),
        block_size=block_size,
        aggregators=draw(st.integers(1, 70)),
        slots=draw(st.integers(1, 20)),
        window=stripe * draw(st.integers(1, 9)),
        stripe=stripe,
    )


@given(shape=shapes())
def test_every_block_has_one_place(shape: Any) -> None:
    places = [shape.place_of(block) for block in range(shape.blocks)]
    assert len(set(places)) == shape.blocks
    for block, (aggregator, slot, position) in enumerate(places):
        assert aggregator < shape.aggregators
        assert slot < shape.slots
        assert position < shape.positions(slot)
        assert shape.block_at(aggregator, slot, position) == block


@given(shape=shapes(), data=st.data())
def test_every_position_has_one_block_and_they_ascend(shape: Any, data: st.DataObject) -> None:
    aggregator = data.draw(st.integers(0, shape.aggregators - 1))
    slot = data.draw(st.integers(0, shape.slots - 1))
    positions = shape.positions(slot)
    assert positions % shape.window == 0
    blocks = [shape.block_at(aggregator, slot, position) for position in range(positions)]
    assert blocks == sorted(set(blocks))
    for position, block in enumerate(blocks):
        assert shape.place_of(block) == (aggregator, slot, position)
        # A stripe travels as one run.
        if position % shape.stripe:
            assert block == blocks[position - 1] + 1


@given(shape=shapes())
def test_the_elements_of_all_blocks_are_the_tensor(shape: Any) -> None:
    sizes = [shape.elements_of(block) for block in range(shape.blocks + 3)]
    assert sum(sizes) == shape.count
    assert all(size == shape.block_size for size in sizes[: max(0, shape.blocks - 1)])
    assert sizes[shape.blocks :] == [0, 0, 0]


@given(
    count=st.integers(0, 1 << 40) | st.integers(0, 100_000),
    dtype=st.sampled_from(list(STORAGE)),
    block_size=st.integers(8, 65536),
    aggregators=st.integers(1, 1000),
    max_slots=st.integers(1, 65536),
    message_bytes=st.integers(64, 1 << 26),
)
def test_fit(
    count: int, dtype: str, block_size: int, aggregators: int, max_slots: int, message_bytes: int
) -> None:
    """For all that the settings allow: windows as large as a message, as many slots as of use."""
    shape = protocol.Shape.fit(
        count=count, dtype=dtype, block_size=block_size, aggregators=aggregators,
        max_slots=max_slots, message_bytes=message_bytes,
    )  # fmt: skip
    assert (shape.count, shape.block_size, shape.aggregators) == (count, block_size, aggregators)
    assert shape.dtype == dtype
    assert shape.window % shape.stripe == 0
    window_bytes = shape.window * shape.block_bytes
    assert shape.window == 1 or message_bytes / 2 < window_bytes <= message_bytes
    assert shape.stripe == 1 or shape.stripe * shape.block_bytes <= 8192
    assert 1 <= shape.slots <= max_slots
    slots_with_blocks = sum(shape.positions(slot) > 0 for slot in range(shape.slots))
    assert slots_with_blocks == (shape.slots if count else 0)
    assert shape.slots == max_slots or shape.positions(0) <= shape.window
    # The wire carries it.
    message = protocol.encode([], shape, shape=shape)
    assert protocol.decode(message, shape)["shape"] == shape


def busiest_over_mean(blocks: np.ndarray, shape: Any) -> float:
    load = np.bincount(
        [shape.place_of(int(block))[0] for block in blocks], minlength=shape.aggregators
    )
    return load.max() / load.mean()


def fitted(aggregators: int) -> Any:
    return protocol.Shape.fit(
        count=25_000_000, dtype="float32", block_size=256, aggregators=aggregators, max_slots=16,
        message_bytes=65536,
    )  # fmt: skip


@pytest.mark.parametrize("aggregators", [2, 4, 5, 8])
@pytest.mark.parametrize("row", [64, 256])
@pytest.mark.parametrize("tokens", [10_000, 200_000])
def test_hot_front_of_an_embedding_table_loads_all_aggregators(
    tokens: int, row: int, aggregators: int
) -> None:
    """Rows of a 100 MB table in order of frequency, drawn by Zipf's law: bytes within 10%."""
    shape = fitted(aggregators)
    rows = shape.count // row
    weight = 1 / np.arange(1, rows + 1)
    drawn = np.random.default_rng(7).choice(rows, tokens, p=weight / weight.sum())
    blocks = np.unique(drawn * row // shape.block_size)
    assert busiest_over_mean(blocks, shape) <= 1.1


@pytest.mark.parametrize("aggregators", [2, 3, 4, 8, 16])
@pytest.mark.parametrize("period", [2, 3, 8, 16, 64, 100, 128, 256, 1024])
def test_periodic_patterns_load_all_aggregators(period: int, aggregators: int) -> None:
    """One stripe in so many: within 10%, as far as dealing so few at random would be."""
    shape = fitted(aggregators)
    stripes = np.arange(0, shape.blocks // shape.stripe, period)
    blocks = (stripes[:, None] * shape.stripe + np.arange(shape.stripe)).ravel()
    deviation = (aggregators / len(stripes)) ** 0.5  # of one aggregator's share, of its mean
    assert busiest_over_mean(blocks, shape) <= 1.1 + 1.5 * deviation
