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
from cases import Case, cases
from hypothesis import given
from hypothesis import strategies as st
from network import Network

from omnihvd._engine import EngineError, protocol

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
    frames: int = 1, magic: bytes = b"OHVD", version: int = 2, kind: int = CONTRIBUTION,
    flags: int = 0,
) -> bytes:  # fmt: skip
    fields = magic, version, kind, flags, 0, 0, 0, 0, 0, 0, frames, 0, b""
    return struct.pack("<4sHBBHHIQQQII16s", *fields)


def message(*numbers: int, tail: bytes = b"", **fields: Any) -> bytes:
    return header(**fields) + b"".join(map(varint, numbers)) + tail


def shape_bytes(*, count: int = 893, dtype: int = 2, block_size: int = 10, aggregators: int = 1,
                slots: int = 1, window: int = 4, stripe: int = 2) -> bytes:  # fmt: skip
    return struct.pack("<QIIIIIIQ", count, dtype, block_size, aggregators, slots, window, stripe, 0)


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
            data = bits.to_bytes((n + 7) // 8, "little") + bytes(4 * bits.bit_count())
            blocks.append((position, data, True))
        else:
            blocks.append((position, draw(st.binary(min_size=4 * n, max_size=4 * n)), False))
    return Frame(
        round=draw(st.integers(0, 2**32 - 1)),
        bound=draw(st.just(END) | st.integers(0, END)),
        blocks=blocks,
        ahead=sorted(draw(st.sets(st.integers(0, SHAPE.positions(0) - 1), max_size=20))),
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
    data = protocol.encode(sent, shape=shape, kind=kind, stream=stream, sender=sender, group=group,
                           number=number, sequence=sequence)  # fmt: skip
    read = protocol.decode(data, SHAPE)
    assert [(f.slot, f.round, f.bound, blocks_of(f), f.ahead) for f in read.pop("frames")] == [
        (f.slot, f.round, f.bound, blocks_of(f), f.ahead) for f in sent
    ]
    expected = {"kind": kind, "stream": stream, "from": sender, "group": group, "number": number,
                "sequence": sequence}  # fmt: skip
    assert read == (expected if shape is None else {**expected, "shape": shape})


@given(text=st.binary(max_size=300))
def test_abort_carries_text(text: bytes) -> None:
    data = protocol.encode([], kind=ABORT, text=text)
    assert protocol.decode(data, SHAPE)["text"] == text


@given(sent=st.lists(frames(), min_size=1, max_size=3), data=st.data())
def test_a_message_cut_short_or_continued_is_refused(sent: list, data: st.DataObject) -> None:
    whole = protocol.encode(sent, shape=SHAPE)
    cut = data.draw(st.integers(0, len(whole) - 1))
    for wrong in (whole[:cut], whole + b"\0"):
        with pytest.raises(EngineError):
            protocol.decode(wrong, SHAPE)


def test_plain_blocks_are_aligned_for_the_vector_units() -> None:
    value = bytes(range(40))
    data = protocol.encode([Frame(blocks=[(3, value, False)]), Frame(blocks=[(5, value, False)])])
    first = data.index(value)
    assert first % 8 == 0
    assert data.index(value, first + 1) % 8 == 0


NO_BLOCKS = (0, 0, 0)  # slot, round, bound + 1
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
    "no such slot": (message(1, 0, 0, 0, 0, 0), "no such slot"),
    "a huge slot": (message(END, 0, 0, 0, 0, 0), "no such slot"),
    "a huge round": (message(0, 1 << 32, 0, 0, 0, 0), "no such slot or round"),
    "more blocks than a window": (message(*NO_BLOCKS, 5, 0, 0, 0, 1, 1, 1, 1), "too many blocks"),
    "a huge number of blocks": (message(*NO_BLOCKS, END, 0, 0), "too many blocks"),
    "a huge number of names": (message(*NO_BLOCKS, 0, END, 0), "too many blocks"),
    "a name too few": (message(*NO_BLOCKS, 0, 3, 0, 1, 1), "too many blocks"),
    "a name twice": (message(*NO_BLOCKS, 0, 2, 0, 1, 0), "out of order"),
    "a name beyond the stream": (message(*NO_BLOCKS, 0, 1, 0, 92), "out of order or range"),
    "names that wrap around": (message(*NO_BLOCKS, 0, 2, 0, 91, END), "out of order or range"),
    "payload without blocks": (message(*NO_BLOCKS, 0, 0, 1), "payload without blocks"),
    "a huge payload": (message(*NO_BLOCKS, 1, 0, END, 0, 0), "ends early"),
    "a number of 11 bytes": (header() + b"\x80" * 10 + b"\1", "number too long"),
    # A position, a bit for `packed`, and the block; the header and seven numbers are 71 bytes.
    "a block that there is not": (
        message(*NO_BLOCKS, 1, 0, 40, 90, 0) + bytes(40),
        "beyond the",
    ),
    "a block too short": (message(*NO_BLOCKS, 1, 0, 39, 0, 0) + bytes(39), "ends early"),
    "a payload too long": (message(*NO_BLOCKS, 1, 0, 41, 0, 0) + bytes(41), "another size"),
    "a payload too short": (message(*NO_BLOCKS, 1, 0, 39, 0, 0) + bytes(40), "another size"),
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
    return protocol.encode([Frame(blocks=[(0, bitmap + bytes(4 * values), True)] * blocks)])


def test_packed_blocks_are_checked() -> None:
    assert protocol.decode(packed(b"\xff\3", 10), SHAPE)
    for wrong in (packed(b"\xff\7", 10), packed(b"\xff\3", 9), packed(b"\xff\3", 11),
                  packed(b"\xff", 0)):  # fmt: skip
        with pytest.raises(EngineError):
            protocol.decode(wrong, SHAPE)


@pytest.mark.parametrize(
    "wrong",
    [
        {"count": (1 << 56) + 1}, {"dtype": 8}, {"dtype": 2**32 - 1}, {"block_size": 0},
        {"block_size": 2**32 - 1}, {"aggregators": 0}, {"slots": 0}, {"slots": 2**32 - 1},
        {"window": 0}, {"window": 1}, {"window": 3}, {"window": 2**32 - 2}, {"stripe": 0},
        {"stripe": 2**32 - 1},
    ],
    ids=str,
)  # fmt: skip
def test_impossible_shapes_are_refused(wrong: dict) -> None:
    assert protocol.decode(header(flags=1, frames=0) + shape_bytes(), SHAPE)["shape"] == SHAPE
    with pytest.raises(EngineError, match="shape"):
        protocol.decode(header(flags=1, frames=0) + shape_bytes(**wrong), SHAPE)


def test_another_version_is_named_with_the_remedy() -> None:
    with pytest.raises(EngineError, match=r"version 9 .*version 2.*install the same omnihvd"):
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
