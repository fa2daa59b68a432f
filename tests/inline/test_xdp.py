"""The XDP program does what user space does."""

from __future__ import annotations

import os
import random
import struct
from typing import Any

import numpy as np
import pytest
from _engine_tests import arithmetic
from _engine_tests import inline_parts as parts
from xdp_planes import JOBS, PORT, SLOTS, WHY_NOT, make_plane

BLOCK, NONE, KEY = 256, 0xFFFFFFFF, 77
HEAD = struct.Struct("<QBBHHHIIIB3x")
DROP, PASS, TX = 1, 2, 3
INT32, FLOAT32, FPISA, FPISA_A = range(4)
MACS = bytes(range(6)) + bytes(range(16, 22))

pytestmark = [pytest.mark.root, pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)]


@pytest.fixture(scope="module")
def made() -> Any:
    return make_plane()


class Fresh:
    """The program with a job that begins, and what it has counted since."""

    def __init__(self, plane: Any, added_as: int = INT32) -> None:
        self.plane, self.run = plane, plane.run
        plane.set_job(0, KEY, 2, added_as)
        self.before = plane.counts()

    def counts(self) -> dict[str, int]:
        return {name: n - self.before[name] for name, n in self.plane.counts().items()}


@pytest.fixture
def plane(made: Any) -> Fresh:
    return Fresh(made)


def checksum(header: bytes) -> int:
    total = sum(struct.unpack("!10H", header))
    return (total & 0xFFFF) + (total >> 16)


def frame(datagram: bytes, worker: int = 0, **other: int) -> bytes:
    """Ethernet, IPv4 and UDP around a worker's datagram. Checksums are its kernel's."""
    length = other.get("udp_length", 8 + len(datagram))
    ip = struct.pack(
        "!BBHHHBBH4s4s", other.get("version", 0x45), 0, 20 + length, 0,
        other.get("fragment", 0x4000), 64, other.get("protocol", 17), 0,
        bytes([10, 0, 0, 2 + worker]), bytes([10, 0, 0, other.get("host", 1)]),
    )  # fmt: skip
    udp = struct.pack("!HHHH", 5000 + worker, other.get("port", PORT), length, 0)
    return MACS + struct.pack("!H", other.get("ethertype", 0x0800)) + ip + udp + datagram


def contribution(worker: int, round_: int, block: int, next_: int, data: bytes = b"", **other: int):
    flags = other.get("flags", 0) | (1 if data else 0)
    head = HEAD.pack(
        other.get("key", KEY), other.get("kind", 1), flags, other.get("job", 0), worker,
        other.get("slot", 0), round_, block, next_, other.get("exponent", 0),
    )  # fmt: skip
    return head + (data or bytes(4 * BLOCK if flags else 0))


def numbers(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-(2**31), 2**31, BLOCK).astype("<i4")


def test_sums_go_to_all_and_answers_to_who_asks(plane) -> None:
    assert plane.run(frame(contribution(0, 0, NONE, 4, exponent=3)))[0] == DROP
    verdict, opened, _ = plane.run(frame(contribution(1, 0, NONE, 4, exponent=5), 1))
    assert verdict == TX and len(opened) == 42 + 32
    assert HEAD.unpack(opened[42:])[6:] == (0, NONE, 4, 5)
    first, second = numbers(1), numbers(2)
    assert plane.run(frame(contribution(0, 1, 4, NONE, first.tobytes())))[0] == DROP
    verdict, result, _ = plane.run(frame(contribution(1, 1, 4, 12, second.tobytes()), 1))
    assert verdict == TX and len(result) == 42 + 32 + 4 * BLOCK
    assert result[:6] == bytes([1, 0, 0x5E, 0x7F, 77, 1]) and result[6:12] == MACS[:6]
    assert result[26:34] == bytes([10, 0, 0, 1, 239, 255, 77, 1])
    assert struct.unpack("!HHHH", result[34:42]) == (PORT, PORT, len(result) - 34, 0)
    assert checksum(result[14:34]) == 0xFFFF
    assert struct.unpack("!H", result[16:18])[0] == len(result) - 14
    assert HEAD.unpack(result[42:74])[1:3] == (2, 1)
    assert HEAD.unpack(result[42:74])[6:] == (1, 4, 12, 0)
    assert np.array_equal(np.frombuffer(result[74:], "<i4"), first + second)
    for round_, block, sums in ((1, 4, first + second), (0, NONE, None)):
        asked = contribution(0, round_, block, 8, flags=2)
        verdict, answer, _ = plane.run(frame(asked))
        assert verdict == TX and answer[:12] == MACS[6:] + MACS[:6]
        assert struct.unpack("!HH", answer[34:38]) == (PORT, 5000)
        assert (
            answer[26:34] == bytes([10, 0, 0, 1, 10, 0, 0, 2]) and checksum(answer[14:34]) == 0xFFFF
        )
        assert len(answer) == 42 + 32 + (0 if sums is None else 4 * BLOCK)
        assert sums is None or np.array_equal(np.frombuffer(answer[74:], "<i4"), sums)


@pytest.mark.parametrize(
    "other",
    [
        frame(b"x" * 32, ethertype=0x86DD),
        frame(b"x" * 32, protocol=6),
        frame(b"x" * 32, version=0x46),
        frame(b"x" * 32, version=0x65),
        frame(b"x" * 32, fragment=0x2000),
        frame(b"x" * 32, fragment=1),
        frame(b"x" * 32, port=PORT + 1),
        frame(b"x" * 32, host=9),
        frame(contribution(0, 0, NONE, 4, kind=3) + bytes(8)),  # a join
        frame(b"")[:14],
        frame(b"")[:30],
        frame(b"12345678"),
    ],
)
def test_all_else_goes_on_to_the_kernel(plane, other: bytes) -> None:
    verdict, same, _ = plane.run(other)
    assert verdict == PASS and same == other
    assert not any(plane.counts().values())


def test_the_verifier_has_room(made: Any) -> None:
    assert made.verified_instructions < 500_000  # of a million; other compilers need more


DATA = numbers(3).tobytes()


@pytest.mark.parametrize(
    ("wrong", "counted"),
    [
        (frame(contribution(0, 0, NONE, 4))[:-1], "short"),
        (frame(contribution(0, 0, NONE, 4)[:9]), "short"),
        (frame(contribution(0, 1, 4, 8, DATA)[:-4]), "short"),
        (frame(contribution(0, 0, NONE, 4), udp_length=20), "short"),
        (frame(contribution(0, 0, NONE, 4, flags=2)[:-1]), "short"),
        (frame(contribution(0, 0, NONE, 4) + b"x"), "long"),
        (frame(contribution(0, 1, 4, 8, DATA) + b"x"), "long"),
        (frame(contribution(0, 0, NONE, 4), udp_length=1000), "long"),
        (frame(contribution(0, 0, NONE, 4, key=KEY ^ 1 << 63)), "forged"),
        (frame(contribution(0, 0, NONE, 4, key=0, job=1)), "other_job"),
        (frame(contribution(0, 0, NONE, 4, job=JOBS)), "other_job"),
        (frame(contribution(2, 0, NONE, 4)), "stranger"),
        (frame(contribution(65535, 0, NONE, 4)), "stranger"),
        (frame(contribution(0, 0, NONE, 4, slot=SLOTS)), "impossible"),
        (frame(contribution(0, 1, NONE, 4)), "impossible"),
        (frame(contribution(0, 0, 0, 4, DATA)), "impossible"),
        (frame(contribution(0, 2**32 - 9, NONE, 4)), "old"),
    ],
)
def test_what_no_worker_sends_is_counted_and_dropped(plane, wrong: bytes, counted: str) -> None:
    assert plane.run(wrong)[0] == DROP
    assert {name for name, n in plane.counts().items() if n} == {counted}


def floats(seed: int) -> np.ndarray:
    """Numbers of about one size, or any bits: NaN, infinities and denormal numbers, too."""
    if seed % 3 == 0:
        return numbers(seed)
    return np.random.default_rng(seed).standard_normal(BLOCK).astype("<f4")


@pytest.mark.parametrize("added_as", [INT32, FPISA, FPISA_A])
def test_any_datagrams_do_what_they_do_in_user_space(made: Any, added_as: int) -> None:
    plane, blocks = Fresh(made, added_as), floats if added_as else numbers
    prng = random.Random(5)
    model = parts.SlotAggregator(JOBS, SLOTS)
    model.set_job(0, KEY, 2, added_as)
    said = {0: 0, 1: 0, 2: 0}
    rounds = [0] * SLOTS
    for _ in range(3000):
        slot = prng.randrange(SLOTS)
        round_ = (rounds[slot] - prng.choice([0, 0, 0, 0, 1, 1, 2, 7, 8, 9, -1])) % 2**32
        block = prng.choice([NONE, NONE, 4, 8])
        datagram = bytearray(
            contribution(
                prng.randrange(2), round_, block, prng.choice([4, 8, NONE]),
                blocks(prng.randrange(9)).tobytes() if block != NONE else b"",
                slot=slot, flags=prng.choice([0, 0, 2]), exponent=prng.randrange(255),
            )
        )  # fmt: skip
        if prng.random() < 0.1:
            datagram[prng.choice([*range(8), *range(9, 29)])] ^= 1 << prng.randrange(8)
        if prng.random() < 0.05:
            datagram = datagram[: prng.randrange(9, len(datagram))] + b"x" * prng.randrange(2)
        to, answer = model.take(bytes(datagram))
        verdict, after, _ = plane.run(frame(bytes(datagram)))
        said[to] += 1
        assert verdict == (TX if to else DROP)
        if to:
            assert after[42:] == answer
            assert (after[0] == 1) == (to == 1)
        if to == 1:
            rounds[slot] = (HEAD.unpack(answer[:32])[6] + 1) % 2**32
    assert plane.counts() == model.counts
    assert min(said.values()) > 20 and min(rounds) > 2


ROUNDS = 400


def contribute(plane: Any, worker: int, own: np.ndarray, expected: np.ndarray) -> None:
    """All rounds of a sum of two workers in slot 0, each repeated until its result is there."""
    for round_ in range(ROUNDS):
        block = SLOTS * round_ if round_ else NONE
        data = own.tobytes() if round_ else b""
        for tries in range(20_000):  # seconds
            flags = 2 if tries else 0
            sent = contribution(worker, round_, block, SLOTS * (round_ + 1), data, flags=flags)
            verdict, result, _ = plane.run(frame(sent, worker))
            if verdict == TX:
                break
        assert verdict == TX and HEAD.unpack(result[42:74])[6] == round_
        assert not round_ or np.array_equal(np.frombuffer(result[74:], "<f4"), expected)


def test_cores_take_turns_at_a_slot(made: Any) -> None:
    plane, blocks = Fresh(made, FPISA), np.stack([floats(4), floats(5)])
    expected = arithmetic.fpisa_sum(blocks)[2]  # in either order
    child = os.fork()
    if child == 0:
        failed = True
        try:
            contribute(plane, 0, blocks[0], expected)
            failed = False
        finally:
            os._exit(failed)
    try:
        contribute(plane, 1, blocks[1], expected)
    finally:
        _, status = os.waitpid(child, 0)
    counts = plane.counts()
    assert status == 0 and counts["results"] == ROUNDS
    assert counts["taken"] == 2 * ROUNDS and counts["impossible"] == 0
