"""Sums under a codec: what workers and aggregators make of it, whatever the order of delivery."""

from __future__ import annotations

import struct
from contextlib import suppress

import numpy as np
import pytest
from _engine_tests import codec, protocol
from cases import SCHEDULES, Case, cases
from hypothesis import given, settings
from hypothesis import strategies as st
from network import Network

from omnihvd._engine import EngineError

NAMES = [("natural", 0), ("qsgd", 2), ("qsgd", 8), ("terngrad", 0), ("sign", 0), ("one_bit", 0),
         ("int", 4), ("int", 8)]  # fmt: skip
SUMS = 0xFFFFFFFF  # who encodes sums, in keys
F32 = st.just("float32")


def coded_shape(case: Case, of: codec.Codec) -> protocol.Shape:
    return protocol.Shape(
        count=case.count, dtype="float32", block_size=case.block_size, slots=case.slots,
        aggregators=case.aggregators, window=case.window, stripe=case.stripe, codec=of,
    )  # fmt: skip


def run(case: Case, of: codec.Codec, inputs: list[np.ndarray], **other: object) -> Network:
    arguments = {
        "in_place": case.in_place, "ordered": case.ordered, "scan_ahead": case.scan_ahead,
        "start_slots": case.start_slots, "seed": case.seed, "later": SCHEDULES[case.schedule],
    }  # fmt: skip
    network = Network(coded_shape(case, of), inputs, **{**arguments, **other})
    network.run()
    return network


def travels(of: codec.Codec, block: np.ndarray, key: int, sums: bool) -> np.ndarray:
    """The receiver's values of a block that is not packed."""
    if of.coded_bytes(len(block), sums) >= block.nbytes:
        return block
    coded = of.encode(block, key, sums=sums)
    return block if coded is None else of.decode(coded, len(block), sums=sums)


def packs(of: codec.Codec, block: np.ndarray, sums: bool) -> bool:
    bytes_packed = -(-len(block) // 8) + 4 * np.count_nonzero(block)
    return 4 * bytes_packed <= 3 * block.nbytes and (
        bytes_packed <= of.coded_bytes(len(block), sums)
    )


def expected_sum(inputs: list[np.ndarray], size: int, of: codec.Codec) -> np.ndarray:
    """In rank order, by what codec.h says."""
    out = np.zeros_like(inputs[0])
    for number in range(-(-len(out) // size)):
        at = slice(number * size, (number + 1) * size)
        total = np.zeros_like(out[at])
        dense = False
        for rank, given_ in enumerate(inputs):
            block = given_[at]
            if not block.any():
                continue
            if not packs(of, block, False):
                dense = True
                block = travels(of, block, codec.block_key(of.seed, rank, number), False)
            with np.errstate(all="ignore"):
                total = total + block
        if dense or not packs(of, total, True):
            total = travels(of, total, codec.block_key(of.seed, SUMS, number), True)
        out[at] = total
    return out


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=20)
@given(case=cases(dtype=F32, ordered=st.just(True)))
def test_the_sum_is_what_the_codec_says(name: tuple[str, int], case: Case) -> None:
    of = codec.Codec(*name, seed=case.seed)
    inputs = case.inputs()
    network = run(case, of, inputs)
    expected = expected_sum(inputs, case.block_size, of)
    for output in network.outputs:
        assert output.tobytes() == network.outputs[0].tobytes()
    np.testing.assert_array_equal(network.outputs[0], expected)
    if not case.in_place:
        for given_, kept in zip(inputs, network.inputs):
            assert given_.tobytes() == kept.tobytes()


@given(
    case=cases(dtype=F32, ordered=st.just(True)), name=st.sampled_from(NAMES),
    other=st.sampled_from(list(SCHEDULES)),
)  # fmt: skip
@settings(max_examples=60)
def test_ordered_sums_do_not_depend_on_the_order_of_delivery(
    case: Case, name: tuple[str, int], other: str
) -> None:
    of, inputs = codec.Codec(*name, seed=1), case.inputs()
    one = run(case, of, inputs)
    two = run(case, of, inputs, later=SCHEDULES[other], seed=case.seed + 1, start_slots=1)
    assert one.outputs[0].tobytes() == two.outputs[0].tobytes()


@given(case=cases(dtype=F32), name=st.sampled_from(NAMES))
@settings(max_examples=60)
def test_nan_and_infinity_arrive(case: Case, name: tuple[str, int]) -> None:
    inputs, random = case.inputs(), np.random.default_rng(case.seed)
    plain = np.zeros(case.count)
    for array in inputs:
        for value in (np.nan, np.inf, -np.inf):
            if case.count:
                array[random.integers(case.count)] = value
    with np.errstate(invalid="ignore"):
        for array in inputs:
            plain = plain + array
    for output in run(case, codec.Codec(*name), inputs).outputs:
        for kind in (np.isnan, np.isposinf, np.isneginf):
            np.testing.assert_array_equal(kind(output), kind(plain))


@given(case=cases(dtype=F32), name=st.sampled_from(NAMES))
@settings(max_examples=60)
def test_memory_is_bounded(case: Case, name: tuple[str, int]) -> None:
    network = run(case, codec.Codec(*name), case.inputs())
    assert max(network.peak_accumulator_bytes) <= case.accumulator_bound()


@pytest.mark.parametrize(
    ("name", "up", "down"),
    [(("natural", 0), 0.26, 0.26), (("qsgd", 8), 0.26, 0.26), (("int", 4), 0.14, 0.14),
     (("terngrad", 0), 0.08, 0.14), (("sign", 0), 0.05, 0.14)],
)  # fmt: skip
def test_bytes(name: tuple[str, int], up: float, down: float) -> None:
    """Dense tensors', as shares of their own bytes."""
    count, ranks = 300_000, 3
    shape = protocol.Shape.fit(
        count=count, dtype="float32", block_size=256, aggregators=1, max_slots=8,
        message_bytes=57344, codec=codec.Codec(*name),
    )  # fmt: skip
    random = np.random.default_rng(1)
    inputs = [random.standard_normal(count).astype(np.float32) for _ in range(ranks)]
    network = Network(shape, inputs)
    network.run()
    for rank in range(ranks):
        assert network.bytes_up[rank, 0] <= up * 4 * count
        assert network.bytes_down[0, rank] <= down * 4 * count


def test_sparse_blocks_stay_packed() -> None:
    """Three elements in each block: exact, and far smaller than coded."""
    count = 256 * 100
    values = np.zeros(count, np.float32)
    values[::100] = np.arange(1, 257)
    shape = protocol.Shape(
        count=count, dtype="float32", window=16, stripe=4, codec=codec.Codec("natural")
    )
    network = Network(shape, [values, 2 * values])
    for output in network.run():
        np.testing.assert_array_equal(output, 3 * values)
    assert network.bytes_up[0, 0] < 256 * 100 / 4


def test_another_codec_is_another_sum() -> None:
    def shape(*name: object) -> protocol.Shape:
        return protocol.Shape(count=1000, dtype="float32", codec=codec.Codec(*name))

    assert shape("natural") == shape("natural")
    assert len({str(i) for i in range(4) if shape("qsgd", 8, i) == shape("qsgd", 8, 0)}) == 1
    assert shape("natural") != shape("sign")
    assert shape("qsgd", 8) != shape("qsgd", 4)
    worker = protocol.Worker(shape("sign"), 0, np.ones(1000, np.float32), np.ones(1000, np.float32))
    [(_, message)] = worker.start()
    with pytest.raises(EngineError, match="shapes differ"):
        protocol.Aggregator(shape("natural"), 0, 2).on_message(message.bytes())


# Six blocks of 64 elements and one of 2.
NATURAL = protocol.Shape(
    count=386, dtype="float32", block_size=64, window=8, codec=codec.Codec("natural", seed=77)
)
ONE = struct.pack("<B64s", 128, bytes([126]) * 64)  # 1.0 in each element


def frame(*blocks: tuple[int, bytes, bool]) -> bytes:
    return protocol.encode([protocol.Frame(blocks=blocks)], NATURAL, shape=NATURAL)


def test_coded_blocks_are_read_as_they_were() -> None:
    blocks = [(0, ONE, False), (1, bytes(256), False), (3, b"\1" + bytes(7) + b"ABCD", True),
              (4, ONE, False)]  # fmt: skip
    for some in (blocks, blocks[:1], blocks[:2], blocks[2:]):
        read = protocol.decode(frame(*some), NATURAL)
        assert read["frames"][0].blocks == some
        assert read["shape"] == NATURAL


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (frame((0, b"\0" + ONE[1:], False)), "nothing writes"),
        (frame((0, b"\xff" + ONE[1:], False)), "nothing writes"),
        (frame((0, ONE, False))[:-1], "ends early"),
        (frame((0, ONE + b"\0", False)), "after its last frame"),
    ],
)
def test_damaged_coded_blocks_are_refused(wrong: bytes, why: str) -> None:
    with pytest.raises(EngineError, match=why):
        protocol.decode(wrong, NATURAL)


def test_blocks_too_small_to_be_coded_travel_plain() -> None:
    pair = np.ones(2, np.float32)
    tiny = protocol.Shape(count=2, dtype="float32", codec=codec.Codec("sign"))
    [(_, message)] = protocol.Worker(tiny, 0, pair, pair).start()
    data, body = message.bytes(), 64 + 48  # slot, round, bound, flags
    assert pair.tobytes() in data
    with pytest.raises(EngineError, match="not to be coded"):
        protocol.decode(data[: body + 3] + b"\x0c" + data[body + 4 :], tiny)


@pytest.mark.parametrize("wrong", [(8, 0), (7, 8), (1, 8), (2, 3), (2, 0), (6, 2), (255, 255)])
def test_impossible_codecs_are_refused(wrong: tuple[int, int]) -> None:
    data = bytearray(frame((0, ONE, False)))
    data[64 + 32 : 64 + 34] = bytes(wrong)
    with pytest.raises(EngineError, match="impossible codec"):
        protocol.decode(bytes(data), NATURAL)
    data = bytearray(frame((0, ONE, False)))
    data[64 + 8] = 3  # float64
    with pytest.raises(EngineError, match="impossible codec"):
        protocol.decode(bytes(data), NATURAL)


@given(data=st.data(), kind=st.sampled_from([1, 2]))
@settings(max_examples=100)
def test_damaged_messages_are_refused_or_end_well(data: st.DataObject, kind: int) -> None:
    sent = protocol.Frame(blocks=[(0, ONE, False), (2, bytes(256), False), (4, ONE, False)])
    message = bytearray(protocol.encode([sent], NATURAL, shape=NATURAL, kind=kind))
    for _ in range(data.draw(st.integers(1, 4))):
        message[data.draw(st.integers(64, len(message) - 1))] ^= data.draw(st.integers(1, 255))
    with suppress(EngineError):
        protocol.decode(bytes(message), NATURAL)
