"""Sums of integers and of FPISA's registers by workers and aggregators: the same bits in any order
of messages, and those that the pure functions give."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from _engine_tests import arithmetic, codec, protocol
from cases import SCHEDULES, Case, blocks_of, cases
from hypothesis import given, settings
from hypothesis import strategies as st
from network import Network, sum_in_rank_order

from omnihvd._engine import EngineError

Frame = protocol.Frame
FLOAT32 = st.just("float32")
INTEGERS = st.sampled_from(["integer", "switchml"])
FPISA = st.sampled_from(["fpisa", "fpisa-a"])
RESULT = 2


def network_of(
    case: Case,
    inputs: list[np.ndarray],
    kind: str,
    by: codec.Codec | None = None,
    **other: Any,
) -> Network:
    """The case's, with sums in these numbers."""

    def made(_: Any, given_: list[np.ndarray], **arguments: Any) -> Network:
        shape = protocol.Shape(
            count=case.count, dtype="float32", block_size=case.block_size,
            aggregators=case.aggregators, slots=case.slots, window=case.window,
            stripe=case.stripe, arithmetic=kind, workers=case.workers, codec=by or codec.Codec(),
        )  # fmt: skip
        return Network(shape, given_, **arguments)

    return case.network(inputs, made, **other)  # type: ignore[arg-type]


def assert_alike(network: Network) -> np.ndarray:
    for output in network.outputs:
        assert output.tobytes() == network.outputs[0].tobytes()
    return network.outputs[0]


def spread(case: Case, special: bool = False) -> list[np.ndarray]:
    """The case's tensors, of magnitudes from denormal to nearly the largest."""
    random = np.random.default_rng(case.seed)
    with np.errstate(all="ignore"):
        inputs = [
            np.ldexp(array.astype(np.float64), random.integers(-160, 108, case.count)).astype("f4")
            for array in case.inputs()
        ]
    for array in inputs if special and case.count else []:
        array[random.integers(case.count, size=3)] = [np.nan, np.inf, -np.inf]
        array[random.integers(case.count)] = np.inf
    return inputs


def modelled(inputs: list[np.ndarray], block_size: int) -> np.ndarray:
    """The sums that integers of each block's common scale have."""
    bits = arithmetic.bits_for(len(inputs))
    total = np.zeros_like(inputs[0])
    for first in range(0, len(total), block_size):
        rows = np.stack([array[first : first + block_size] for array in inputs])
        exponent = max(arithmetic.exponent_of(row) for row in rows)
        integers = [arithmetic.to_integers(row, exponent, bits)[0] for row in rows]
        sums = arithmetic.to_floats(np.sum(integers, 0, dtype=np.int32), exponent, bits)
        total[first : first + block_size] = arithmetic.with_no_numbers(rows, sums, added=False)
    return total


@settings(max_examples=50)
@given(case=cases(dtype=FLOAT32), kind=INTEGERS, special=st.booleans())
def test_integers_are_summed_as_the_pure_functions_do(case: Case, kind: str, special: bool) -> None:
    inputs = spread(case, special)
    network = network_of(case, inputs, kind)
    network.run()
    result = assert_alike(network)
    expected = modelled(inputs, case.block_size)
    np.testing.assert_array_equal(result, expected)
    if not case.in_place:
        for given_, kept in zip(inputs, network.inputs):
            assert given_.tobytes() == kept.tobytes()


@settings(max_examples=50)
@given(case=cases(dtype=FLOAT32), other=st.sampled_from(list(SCHEDULES)), kind=INTEGERS)
def test_sums_of_integers_do_not_depend_on_the_order(case: Case, other: str, kind: str) -> None:
    """Neither on that of messages, nor on that of ranks."""
    inputs = spread(case)
    first = network_of(case, inputs, kind, ordered=False)
    first.run()
    again = network_of(
        case, inputs[::-1], kind, ordered=False, later=SCHEDULES[other], seed=case.seed + 1
    )
    again.run()
    assert assert_alike(first).tobytes() == assert_alike(again).tobytes()


@settings(max_examples=50)
@given(
    case=cases(dtype=FLOAT32),
    other=st.sampled_from(list(SCHEDULES)),
    kind=INTEGERS,
    special=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_sums_of_powers_of_two_are_exact_in_any_order_of_messages(
    case: Case, other: str, kind: str, special: bool, seed: int
) -> None:
    inputs, natural = spread(case, special), codec.Codec("natural", seed=seed)
    first = network_of(case, inputs, kind, natural, ordered=False)
    first.run()
    again = network_of(
        case, inputs, kind, natural, ordered=False, later=SCHEDULES[other], seed=case.seed + 1
    )
    again.run()
    result = assert_alike(first)
    assert result.tobytes() == assert_alike(again).tobytes()
    bits = arithmetic.bits_for(len(inputs))
    for number, at in enumerate(range(0, case.count, case.block_size)):
        rows = np.stack([array[at : at + case.block_size] for array in inputs])
        exponent = max(arithmetic.exponent_of(row) for row in rows)
        sent = [
            arithmetic.from_codes(arithmetic.to_codes(row, exponent, bits, seed, rank, number)[0])
            for rank, row in enumerate(rows)
        ]
        sums = arithmetic.to_floats(np.sum(sent, 0, dtype=np.int64), exponent, bits)
        expected = arithmetic.with_no_numbers(rows, sums, added=False)
        np.testing.assert_array_equal(result[at : at + case.block_size], expected)


@settings(max_examples=50)
@given(case=cases(dtype=FLOAT32, ordered=st.just(True)), kind=FPISA)
def test_registers_are_those_of_the_pure_functions_in_rank_order(case: Case, kind: str) -> None:
    inputs = spread(case)
    network = network_of(case, inputs, kind)
    network.run()
    result = assert_alike(network)
    for first in range(0, case.count, case.block_size):
        block = slice(first, first + case.block_size)
        rows = [array[block] for array in inputs if array[block].any()]
        if rows:  # who has nothing there adds nothing
            expected = arithmetic.fpisa_sum(np.stack(rows), kind == "fpisa-a")[2]
            np.testing.assert_array_equal(result[block], expected)
        else:
            assert not result[block].any()


@settings(max_examples=50)
@given(case=cases(dtype=FLOAT32), kind=INTEGERS | st.just("fpisa"))
def test_whole_numbers_are_exact(case: Case, kind: str) -> None:
    inputs = case.inputs()
    network = network_of(case, inputs, kind)
    network.run()
    np.testing.assert_array_equal(assert_alike(network), sum_in_rank_order(inputs, "float32"))


@settings(max_examples=50)
@given(case=cases(dtype=FLOAT32), kind=INTEGERS | FPISA)
def test_memory_rounds_and_blocks_are_bounded(case: Case, kind: str) -> None:
    inputs = case.inputs()
    network = network_of(case, inputs, kind)
    network.run()
    # Sums and what is made of them: int32, and with what is no number; registers, and float32.
    element = 8 + 4 if kind in ("fpisa", "fpisa-a") else 4 + 8
    bound = case.slots * 2 * case.window * (case.block_size * element + 1)
    assert max(network.peak_accumulator_bytes) <= bound
    has = [blocks_of(array != 0, case.block_size) for array in inputs]
    if kind == "switchml":
        has = [np.ones(network.shape.blocks, bool) for _ in inputs]
    assert [worker.nonzero_blocks for worker in network.workers] == [int(b.sum()) for b in has]
    sent = [np.ones(case.count)] if kind == "switchml" else inputs
    for (aggregator, slot), rounds in network.rounds.items():
        # Integers: one more, before the first scales are known, and those of the first window.
        assert rounds <= 2 + case.round_bound(aggregator, slot, sent)


@pytest.mark.parametrize("workers", [1, 2, 3, 7, 64])
def test_all_ranks_at_the_largest_number_do_not_wrap(workers: int) -> None:
    """The sum is infinity as float32's is, in both signs; not a number of the other sign."""
    largest = np.float32(3.4028235e38)
    inputs = [np.tile([largest, -largest, largest / (2 * workers)], 30) for _ in range(workers)]
    shape = protocol.Shape(
        count=90, dtype="float32", block_size=8, slots=2, arithmetic="integer", workers=workers
    )
    result = Network(shape, inputs).run()[0]
    expected = [math.inf, -math.inf, float(largest) / 2] if workers > 1 else inputs[0][:3]
    np.testing.assert_allclose(result[:3], expected, rtol=1e-6)


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9])
@pytest.mark.parametrize("kind", ["integer", "switchml", "fpisa", "fpisa-a"])
def test_borders(count: int, kind: str) -> None:
    inputs = [np.full(count, 0.5 + rank, np.float32) for rank in range(3)]
    shape = protocol.Shape(
        count=count, dtype="float32", block_size=8, aggregators=3, arithmetic=kind, workers=3
    )
    for output in Network(shape, inputs).run():
        np.testing.assert_array_equal(output, np.full(count, 4.5, np.float32))


def test_numbers_of_a_block_with_infinities_keep_their_accuracy() -> None:
    inputs = [np.linspace(1, 2, 256).astype(np.float32) for _ in range(3)]
    inputs[1][7], inputs[2][9], inputs[0][11], inputs[1][11] = np.inf, np.nan, np.inf, -np.inf
    shape = protocol.Shape(count=256, dtype="float32", arithmetic="integer", workers=3)
    with np.errstate(invalid="ignore"):
        expected = np.sum(inputs, 0, dtype=np.float64)
    np.testing.assert_allclose(Network(shape, inputs).run()[0], expected, rtol=1e-6)


# A sum of integers, as the wire and its peers see it.

SHAPE = protocol.Shape(
    count=893, dtype="float32", block_size=10, window=4, stripe=2, arithmetic="integer", workers=3
)


def test_exponents_travel_with_the_blocks_that_are_named() -> None:
    frame = Frame(bound=9, ahead=[1, 2, 7], exponents=[1, 254, 130])
    bytes_ = protocol.encode([frame], SHAPE, shape=SHAPE)
    fields = protocol.decode(bytes_, SHAPE)
    assert fields["shape"] == SHAPE
    assert fields["frames"][0].ahead == [1, 2, 7]
    assert fields["frames"][0].exponents == [1, 254, 130]
    with pytest.raises(EngineError, match="malformed"):
        protocol.decode(bytes_[:-1], SHAPE)
    for wrong in (b"\x00", b"\xff"):
        with pytest.raises(EngineError, match="an impossible exponent"):
            protocol.decode(bytes_[:-1] + wrong, SHAPE)


@pytest.mark.parametrize("blocks", [b"\x00" + bytes(40), b"\x01" + bytes(80)])
def test_blocks_of_integers(blocks: bytes) -> None:
    frame = Frame(round=1, bound=9, blocks=[(3, blocks, False)])
    bytes_ = protocol.encode([frame], SHAPE)
    assert bytes(protocol.decode(bytes_, SHAPE)["frames"][0].blocks[0][1]) == blocks
    with pytest.raises(EngineError, match="malformed"):
        protocol.decode(bytes_[:-1], SHAPE)
    at = len(bytes_) - len(blocks)
    with pytest.raises(EngineError, match="integers that nothing writes"):
        protocol.decode(bytes_[:at] + b"\x02" + bytes_[at + 1 :], SHAPE)


NATURAL = protocol.Shape(
    count=893, dtype="float32", block_size=10, window=4, stripe=2, arithmetic="integer", workers=3,
    codec=codec.Codec("natural"),
)  # fmt: skip


@pytest.mark.parametrize("blocks", [b"\x02" + bytes(10), b"\x03" + bytes(50), b"\x00" + bytes(40)])
def test_blocks_of_codes(blocks: bytes) -> None:
    """Contributions have them, where the ranks have agreed on the codec; results do not."""
    frame = Frame(round=1, bound=9, blocks=[(3, blocks, False)])
    bytes_ = protocol.encode([frame], NATURAL, shape=NATURAL)
    assert protocol.decode(bytes_, NATURAL)["shape"] == NATURAL
    assert bytes(protocol.decode(bytes_, NATURAL)["frames"][0].blocks[0][1]) == blocks
    with pytest.raises(EngineError, match="malformed"):
        protocol.decode(bytes_[:-1], NATURAL)
    at = len(bytes_) - len(blocks)
    with pytest.raises(EngineError, match="integers that nothing writes"):
        protocol.decode(bytes_[:at] + b"\x04" + bytes_[at + 1 :], NATURAL)
    if blocks[0]:
        result = protocol.encode([frame], NATURAL, kind=RESULT)
        with pytest.raises(EngineError, match="integers that nothing writes"):
            protocol.decode(result, NATURAL)


def test_impossible_arithmetic() -> None:
    bytes_ = protocol.encode([Frame(bound=9)], SHAPE, shape=SHAPE)
    at = 64 + 8 + 6 * 4 + 3
    assert bytes_[at] == 1 + 8 * arithmetic.bits_for(3)
    for wrong in (1, 1 + 8 * 31, 3 + 8, 5, 7, 8):
        with pytest.raises(EngineError, match="impossible arithmetic"):
            protocol.decode(bytes_[:at] + bytes([wrong]) + bytes_[at + 1 :], SHAPE)
    other_dtype = bytes_[: 64 + 8] + b"\x03" + bytes_[64 + 9 :]
    with pytest.raises(EngineError, match="impossible arithmetic"):
        protocol.decode(other_dtype, SHAPE)


LACKS = "a result lacks the scale of a block that this rank has: an aggregator is faulty"


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        pytest.param(Frame(bound=2, ahead=[0], exponents=[128]), LACKS, id="lacks a scale"),
        pytest.param(Frame(bound=2), LACKS, id="lacks all scales"),
        pytest.param(
            Frame(bound=2, ahead=[0, 1], exponents=[128, 128], blocks=[(0, bytes(40), False)]),
            "a result holds a block outside its window: an aggregator is faulty",
            id="a sum in the round of names",
        ),
    ],
)
def test_a_worker_refuses_results_without_scales(frame: Any, said: str) -> None:
    inputs = [np.full(893, 1.0 + rank, np.float32) for rank in range(3)]
    network = Network(SHAPE, inputs)
    network.post(("start", 1), None)
    while network.step():
        pass
    with pytest.raises(EngineError, match=said):
        network.workers[1].on_message(protocol.encode([frame], SHAPE, kind=RESULT))
    for output in network.run():
        np.testing.assert_array_equal(output, sum(inputs))


def test_an_aggregator_refuses_blocks_in_the_round_of_names() -> None:
    inputs = [np.full(893, 1.0 + rank, np.float32) for rank in range(3)]
    network = Network(SHAPE, inputs)
    frame = Frame(bound=9, blocks=[(0, b"\x00" + bytes(40), False)])
    with pytest.raises(EngineError, match="not in the window"):
        network.aggregators[0].on_message(protocol.encode([frame], SHAPE, sender=0))
    for output in network.run():
        np.testing.assert_array_equal(output, sum(inputs))
