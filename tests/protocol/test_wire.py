"""The bytes of messages: what is written is read again, and nothing else is believed."""

from __future__ import annotations

import resource
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _engine_tests import protocol
from cases import Case, cases
from hypothesis import given
from hypothesis import strategies as st
from network import Network

from omnihvd._engine import EngineError

Frame = protocol.Frame
END = protocol.END
CONTRIBUTION, RESULT, ABORT, LEAVE = 1, 2, 3, 4

# One aggregator and slot; 90 blocks of 10 elements, the last one of 3.
SHAPE = protocol.Shape(count=893, dtype="float32", block_size=10, window=4, stripe=2)


@pytest.fixture(scope="module", autouse=True)
def bounded_memory() -> Iterator[None]:
    """No message here may make the engine allocate more than 256 MiB: that is a MemoryError."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limits = resource.getrlimit(resource.RLIMIT_AS)
    bytes_now = pages * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (bytes_now + (256 << 20), limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, limits)


def varint(value: int) -> bytes:
    data = bytearray()
    while value >= 0x80:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*data, value])


def header(
    frames: int = 1, magic: bytes = b"OHVD", version: int = 7, kind: int = CONTRIBUTION,
    flags: int = 0,
) -> bytes:  # fmt: skip
    fields = magic, version, kind, flags, 0, 0, 0, 0, 0, 0, frames, 0, b""
    return struct.pack("<4sHBBHHIQQQII16s", *fields)


def message(*numbers: int, tail: bytes = b"", **fields: Any) -> bytes:
    return header(**fields) + b"".join(map(varint, numbers)) + tail


def shape_bytes(*, count: int = 893, dtype: int = 2, block_size: int = 10, aggregators: int = 1,
                slots: int = 1, window: int = 4, stripe: int = 2,
                owner: int = 2**32 - 1) -> bytes:  # fmt: skip
    numbers = count, dtype, block_size, aggregators, slots, window, stripe
    return struct.pack("<QIIIIIIQII", *numbers, 0, owner, 0)


def blocks_of(frame: Any) -> list[tuple[int, bytes, bool]]:
    return [(position, bytes(data), packed) for position, data, packed in frame.blocks]


@st.composite
def frames(draw: st.DrawFn) -> Any:
    """Any frame for SHAPE, well-formed."""
    positions = sorted(draw(st.sets(st.integers(0, 89), max_size=4)))
    blocks = []
    for position in positions:
        n = SHAPE.elements_of(position)
        if draw(st.booleans()):
            bits = draw(st.integers(0, 2**n - 1))
            values = draw(st.binary(min_size=4 * bits.bit_count(), max_size=4 * bits.bit_count()))
            data = bits.to_bytes((n + 7) // 8, "little") + values
            blocks.append((position, data, True))
        else:
            blocks.append((position, draw(st.binary(min_size=4 * n, max_size=4 * n)), False))
    return Frame(
        round=draw(st.integers(0, 2**32 - 1)),
        bound=draw(st.just(END) | st.integers(0, END)),
        blocks=blocks,
        ahead=sorted(draw(st.sets(st.integers(0, SHAPE.positions(0) - 1), max_size=8))),
    )


@given(
    sent=st.lists(frames(), max_size=5),
    shape=st.none() | st.just(SHAPE),
    kind=st.sampled_from([CONTRIBUTION, RESULT]),
    stream=st.integers(0, 2**16 - 1),
    sender=st.integers(0, 2**32 - 1),
    numbers=st.tuples(*[st.integers(0, END)] * 3),
)
def test_what_is_written_is_read(
    sent: list, shape: Any, kind: int, stream: int, sender: int, numbers: tuple
) -> None:
    group, number, sequence = numbers
    data = protocol.encode(sent, SHAPE, shape=shape, kind=kind, stream=stream, sender=sender,
                           group=group, number=number, sequence=sequence)  # fmt: skip
    read = protocol.decode(data, SHAPE)
    del read["listed"]
    assert [(f.slot, f.round, f.bound, blocks_of(f), f.ahead) for f in read.pop("frames")] == [
        (f.slot, f.round, f.bound, blocks_of(f), f.ahead) for f in sent
    ]
    expected = {"kind": kind, "stream": stream, "from": sender, "group": group, "number": number,
                "sequence": sequence}  # fmt: skip
    assert read == (expected if shape is None else {**expected, "shape": shape})


@given(text=st.binary(max_size=300))
def test_abort_carries_text(text: bytes) -> None:
    data = protocol.encode([], SHAPE, kind=ABORT, text=text)
    assert protocol.decode(data, SHAPE)["text"] == text


@given(sent=st.lists(frames(), min_size=1, max_size=3), data=st.data())
def test_a_message_cut_short_or_continued_is_refused(sent: list, data: st.DataObject) -> None:
    whole = protocol.encode(sent, SHAPE, shape=SHAPE)
    cut = data.draw(st.integers(0, len(whole) - 1))
    for wrong in (whole[:cut], whole + b"\0"):
        with pytest.raises(EngineError):
            protocol.decode(wrong, SHAPE)


def test_what_no_field_uses_is_zero() -> None:
    """A field that later versions may use, and the tag, which only sealed messages have."""
    sent = protocol.encode([], SHAPE)
    assert sent[10:12] == bytes(2) and sent[48:64] == bytes(16)


def test_plain_blocks_are_aligned_for_the_vector_units() -> None:
    value = bytes(range(40))
    sent = [Frame(blocks=[(3, value, False)]), Frame(blocks=[(5, value, False)])]
    data = protocol.encode(sent, SHAPE)
    first = data.index(value)
    assert first % 8 == 0
    assert data.index(value, first + 1) % 8 == 0


@pytest.mark.parametrize(("blocks", "refers"), [(4, False), (64, True)])
def test_a_short_run_of_blocks_is_copied_and_a_long_one_is_not(blocks: int, refers: bool) -> None:
    """A tensor may change while a message of copies is under way: its sum need not wait."""
    shape = protocol.Shape(
        count=10 * blocks, dtype="float32", block_size=10, window=blocks, stripe=blocks
    )
    array = np.ones(shape.count, np.float32)
    [(_, message)] = protocol.Worker(shape, 0, array, array).start()
    sent = message.bytes()
    array[:] = 2
    assert message.refers == refers and (message.bytes() == sent) != refers


# slot, round, bound + 1, flags; then blocks and ahead: number, first, left out between; a set
PLAIN, PACKED, LISTED, CODED, MIXED = [(0, 0, 0, 4 * form) for form in range(5)]
NAMES = (0, 0, 0, 2, 0)  # no blocks
THREE = (*LISTED, 2, 0, 0, 1)
MALFORMED = {
    "empty": (b"", "shorter than a header"),
    "a header cut short": (header()[:63], "shorter than a header"),
    "another protocol": (header(magic=b"HTTP", frames=0), "not a message of omnihvd"),
    "kind 0": (header(kind=0, frames=0), "unknown kind"),
    "kind 5": (header(kind=5, frames=0), "unknown kind"),
    "a frame too few": (header(frames=1), "ends early"),
    "many frames too few": (header(frames=2**32 - 1), "ends early"),
    "a byte too many": (header(frames=0) + b"\0", "bytes after its last frame"),
    "a shape cut short": (header(flags=1, frames=0) + shape_bytes()[:39], "ends early"),
    "a text cut short": (header(kind=ABORT, frames=2**32 - 1) + b"x", "ends early"),
    "no such slot": (message(1, 0, 0, 0, 0), "no such slot"),
    "a huge slot": (message(END, 0, 0, 0, 0), "no such slot"),
    "a huge round": (message(0, 1 << 32, 0, 0, 0), "no such slot or round"),
    "a flag that there is not": (message(0, 0, 0, 20, 0), "unknown flags"),
    "kept sums of an allreduce": (message(0, 0, 0, 32, 1, 0, kind=RESULT), "nobody can have kept"),
    "more blocks than a window": (message(*PLAIN, 5, 0, 0), "too many blocks"),
    "a huge number of blocks": (message(*PLAIN, END, 0, 0), "too many blocks"),
    "a huge number of names": (message(*NAMES, END, 0, 0), "too many blocks"),
    "names cut short": (message(*NAMES, 3, 1), "ends early"),
    "a set of names cut short": (message(*NAMES, 3, 1, 9), "ends early"),
    "a name beyond the stream": (message(*NAMES, 1, 92), "out of range"),
    "a name far beyond the stream": (message(*NAMES, 1, 93), "out of range"),
    "names up to beyond the stream": (message(*NAMES, 2, 50, 41), "out of range"),
    "a run of names beyond the stream": (message(*NAMES, 3, 90, 0), "out of range"),
    "names that wrap around": (message(*NAMES, 2, 1, END), "out of range"),
    "a name too few": (message(*NAMES, 4, 1, 10, tail=b"\1\0"), "out of order"),
    "a name too many": (message(*NAMES, 4, 1, 10, tail=b"\1\3"), "out of order"),
    "a name beyond the last": (message(*NAMES, 4, 1, 10, tail=b"\1\x10"), "out of order"),
    "a number of 11 bytes": (header() + b"\x80" * 10 + b"\1", "number too long"),
    "a block that there is not": (message(*PLAIN, 1, 90, tail=bytes(48)), "beyond the"),
    "a block too short": (message(*PLAIN, 1, 0, tail=bytes(41)), "ends early"),
    "a block too long": (message(*PLAIN, 1, 0, tail=bytes(43)), "after its last frame"),
    "forms cut short": (message(*MIXED, 1, 0), "ends early"),
    "a coded block without a codec": (message(*CODED, 1, 0, tail=bytes(50)), "not to be coded"),
    "one beside others": (message(*MIXED, 1, 0, 3, tail=bytes(50)), "not to be coded"),
    # Listed: elements less blocks, their offsets, the elements.
    "elements cut short": (message(*LISTED, 1, 0, 0, tail=b"\1\0\0\0\0"), "ends early"),
    "a huge number of elements": (message(*LISTED, 1, 0, END), "ends early"),
    "more elements than blocks have": (message(*LISTED, 1, 0, 16, tail=bytes(99)), "more elements"),
    "an element beyond its block": (message(*LISTED, 1, 0, 0, tail=b"\0\4AAAA"), "beyond its end"),
    "an offset too many": (message(*LISTED, 1, 0, 0, tail=b"\3\0AAAA"), "out of order"),
    # Three elements of two blocks: three low bits of each number, then a bitmap.
    "offsets of more bits": (message(*THREE, tail=b"\x11\2\x13" + b"A" * 12), "out of order"),
    "elements that descend": (message(*THREE, tail=b"\x1d\0\x13" + b"A" * 12), "out of order"),
    "the same element twice": (message(*THREE, tail=b"\x2d\0\x13" + b"A" * 12), "out of order"),
    "a block without any": (message(*THREE, tail=b"\xd1\0\7" + b"A" * 12), "without elements"),
    "not sparse": (message(*LISTED, 1, 0, 7, tail=b"\xff\0" + b"A" * 32), "not sparse"),
}


@pytest.mark.parametrize("data, why", MALFORMED.values(), ids=MALFORMED)
def test_malformed_messages_are_refused(data: bytes, why: str) -> None:
    with pytest.raises(EngineError, match=why):
        protocol.decode(data, SHAPE)
    network = Network(SHAPE, [np.ones(893, np.float32)])
    with pytest.raises(EngineError):
        network.aggregators[0].on_message(data)
    network.workers[0].start()
    with pytest.raises(EngineError):
        network.workers[0].on_message(data.replace(header()[:7], header(kind=RESULT)[:7]))


def packed(bitmap: bytes, values: int, blocks: int = 1) -> bytes:
    frame = Frame(blocks=[(0, bitmap + bytes(4 * values), True)] * blocks)
    return protocol.encode([frame], SHAPE)


def test_packed_blocks_are_checked() -> None:
    assert protocol.decode(packed(b"\xff\3", 10), SHAPE)
    for wrong in (packed(b"\xff\7", 10), packed(b"\xff\3", 9), packed(b"\xff\3", 11),
                  packed(b"\xff", 0)):  # fmt: skip
        with pytest.raises(EngineError):
            protocol.decode(wrong, SHAPE)


# 40 blocks of 256 elements.
SPARSE = protocol.Shape(count=40 * 256 - 3, dtype="float32", window=40, stripe=2)


@given(seed=st.integers(0, 2**32 - 1), fills=st.lists(st.integers(0, 256), max_size=40),
       most=st.sampled_from([1, 2, 9, 30, 256]))  # fmt: skip
def test_sparse_blocks_are_read_as_they_were(seed: int, fills: list, most: int) -> None:
    """Whether they travel listed or not; those with few elements, in few bytes."""
    draw = np.random.default_rng(seed)
    blocks, bits = [], 0.0
    for position, fill in enumerate(fills):
        n = SPARSE.elements_of(position)
        mask = np.zeros(n, bool)
        mask[draw.permutation(n)[: min(fill, most)]] = True
        values = draw.bytes(4 * int(mask.sum()))
        blocks.append((position, np.packbits(mask, bitorder="little").tobytes() + values, True))
        bits += 8 * len(values) + (10 * mask.sum() if 0 < mask.sum() < 25 else 256)
    data = protocol.encode([Frame(blocks=blocks)], SPARSE)
    read = protocol.decode(data, SPARSE)
    assert blocks_of(read["frames"][0]) == blocks
    assert (
        read["listed"][0] == sum(0 < min(f, most) < 25 for f in fills) or most == 30 or most > 200
    )
    assert len(data) <= bits / 8 + 64 + 10 + 2 + 10 + 3


@pytest.mark.parametrize(("fill", "listed"), [(1, 1), (20, 1), (40, 0), (80, 0)])
def test_blocks_are_listed_where_that_saves_a_tenth(fill: int, listed: int) -> None:
    mask = np.zeros(256, bool)
    mask[np.random.default_rng(fill).permutation(256)[:fill]] = True
    data = np.packbits(mask, bitorder="little").tobytes() + b"1234" * fill
    sent = protocol.encode([Frame(blocks=[(3, data, True)])], SPARSE)
    assert protocol.decode(sent, SPARSE)["listed"][0] == listed


@given(sent=frames(), kind=st.sampled_from([CONTRIBUTION, RESULT]), more=st.integers(0, 89))
def test_positions_that_have_been_named_do_not_travel(sent: Any, kind: int, more: int) -> None:
    positions = [position for position, _, _ in sent.blocks]
    sent.as_named = True
    data = protocol.encode([sent], SHAPE, kind=kind)
    [read] = protocol.decode(data, SHAPE, named=positions)["frames"]
    assert (blocks_of(read), read.ahead) == (blocks_of(sent), sent.ahead)
    with pytest.raises(EngineError, match="nobody has named"):
        protocol.decode(data, SHAPE)
    if more not in positions:
        with suppress(EngineError):  # it may end alike, but nothing breaks
            protocol.decode(data, SHAPE, named=sorted([*positions, more]))


@pytest.mark.parametrize(
    "wrong",
    [
        {"count": (1 << 56) + 1}, {"dtype": 8}, {"dtype": 2**32 - 1}, {"block_size": 0},
        {"block_size": 2**32 - 1}, {"aggregators": 0}, {"slots": 0}, {"slots": 2**32 - 1},
        {"window": 0}, {"window": 1}, {"window": 3}, {"window": 2**32 - 2}, {"stripe": 0},
        {"stripe": 2**32 - 1}, {"aggregators": 2, "owner": 1},
    ],
    ids=str,
)  # fmt: skip
def test_impossible_shapes_are_refused(wrong: dict) -> None:
    assert protocol.decode(header(flags=1, frames=0) + shape_bytes(), SHAPE)["shape"] == SHAPE
    with pytest.raises(EngineError, match="shape"):
        protocol.decode(header(flags=1, frames=0) + shape_bytes(**wrong), SHAPE)


def test_as_many_slots_as_settings_allow_are_possible() -> None:
    """OMNIHVD_SLOTS is at most 65536, for each of OMNIHVD_STREAMS=64."""
    read = protocol.decode(header(flags=1, frames=0) + shape_bytes(slots=64 * 65536), SHAPE)
    assert read["shape"].slots == 64 * 65536


def test_another_version_is_named_with_the_remedy() -> None:
    with pytest.raises(
        EngineError, match=r"a peer speaks version 9 .*version 7.*install the same omnihvd"
    ):
        protocol.decode(header(version=9, frames=0), SHAPE)


@given(tail=st.binary(max_size=200), frames=st.integers(0, 3) | st.integers(0, 2**32 - 1),
       kind=st.integers(1, 4), flags=st.integers(0, 255))  # fmt: skip
def test_random_bytes_are_refused_or_read(tail: bytes, frames: int, kind: int, flags: int) -> None:
    network = Network(SHAPE, [np.ones(893, np.float32)] * 2)
    network.workers[0].start()
    data = header(frames=frames, kind=kind, flags=flags) + tail
    for read in (
        lambda: protocol.decode(data, SHAPE),
        lambda: network.aggregators[0].on_message(data),
        lambda: network.workers[0].on_message(data),
        lambda: network.aggregators[0].on_message(tail),
    ):
        with suppress(EngineError):
            read()


MUTATIONS = st.lists(
    st.tuples(
        st.sampled_from(["set", "flip", "delete", "insert", "repeat", "cut"]),
        st.floats(0, 1),  # where
        st.integers(0, 255),
        st.integers(1, 16),
    ),
    min_size=1,
    max_size=4,
)


def mutate(data: bytes, mutations: list) -> bytes:
    for what, where, value, length in mutations:
        at = int(where * len(data))
        before, after = data[:at], data[at:]
        data = {
            "set": before + bytes([value]) + after[1:],
            "flip": before + bytes(b ^ (1 << value % 8) for b in after[:1]) + after[1:],
            "delete": before + after[length:],
            "insert": before + bytes([value]) * length + after,
            "repeat": before + after[:length] + after,
            "cut": before,
        }[what]
    return data


@given(
    case=cases(workers=st.integers(1, 4), count=st.integers(1, 400), block_size=st.integers(1, 20)),
    steps=st.integers(0, 200),
    mutations=MUTATIONS,
)
def test_damaged_messages_are_refused_or_end_well(case: Case, steps: int, mutations: list) -> None:
    """One message of a sum is damaged on its way. It may still make sense, and spoil the sum; but
    nothing breaks, hangs, or takes memory beyond all bounds."""
    network = case.network(case.inputs())
    network.begin()
    for _ in range(steps):
        network.step()
    for event in [e for ready in network.ready for e in ready if e[0] in ("up", "down")]:
        item = network.links[event][0]
        if event[0] == "up":
            receiver, data = network.aggregators[event[2]], item[1]
        else:
            receiver, data = network.workers[event[2]], item
        with suppress(EngineError):
            answer = receiver.on_message(mutate(data, mutations))
            if answer is not None and event[0] == "up":
                network.publish(event[2], answer)
            elif answer is not None:
                network.contribute(event[2], event[1], answer)
    with suppress(EngineError):
        while network.step():
            pass
    assert max(network.peak_accumulator_bytes) <= case.accumulator_bound()
