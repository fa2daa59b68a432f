"""Messages arrive once, whole, unchanged and in order."""

from __future__ import annotations

import random

import numpy as np
import pytest
from ends import End, Process, driven, patterned, poll_until, settle

from omnihvd._engine import EngineError

# Around every size at which UCX changes its way of sending, and past them.
BORDERS = [8, 92, 100, 2048, 8192, 8256, 16384, 63 << 10, 64 << 10, 128 << 10, 1 << 20]
SIZES = [0, 1, 7, *(border + d for border in BORDERS for d in (-17, -1, 0, 1, 17)), 5_000_003]


def pair(kind: str) -> tuple[End, End, int]:
    a, b = End(kind), End(kind)
    return a, b, a.connect(b)


def test_every_size(kind: str) -> None:
    a, b, peer = pair(kind)
    messages = [patterned(size, i) for i, size in enumerate(SIZES)]
    cookies = [a.send(peer, message) for message in messages]
    poll_until([a, b], lambda: len(b.messages) == len(messages) and len(a.sent) == len(cookies))
    assert b.messages == messages
    assert sorted(a.sent) == cookies
    assert not a.failures and not b.failures


@pytest.mark.parametrize("slices", [2, 6, 7, 65, 1000])
def test_slices_are_joined(kind: str, slices: int) -> None:
    a, b, peer = pair(kind)
    random.seed(slices)
    for total in (50, 3000, 65536 + 300, 300_000):
        whole = patterned(total, slices)
        cuts = sorted(random.randrange(total + 1) for _ in range(slices - 1))
        parts = [whole[i:j] for i, j in zip([0, *cuts], [*cuts, total])]  # some are empty
        a.send(peer, *parts)
        poll_until([a, b], lambda: bool(b.messages))
        assert b.messages.pop() == whole


def test_slices_may_lie_anywhere(kind: str) -> None:
    a, b, peer = pair(kind)
    memory = np.frombuffer(patterned(200_000, 1), dtype=np.uint8)
    for offset in range(1, 9):
        for size in (13, 5000, 70_001):
            part = memory[offset : offset + size]
            a.send(peer, part, memory[3 * offset : 3 * offset + 5])
            poll_until([a, b], lambda: bool(b.messages))
            assert b.messages.pop() == part.tobytes() + memory[3 * offset :][:5].tobytes()


def test_order_is_kept_among_many_in_flight(kind: str) -> None:
    a, b, peer = pair(kind)
    random.seed(7)
    sizes = [random.choice([0, 5, 300, 9000, 65600, 200_000]) for _ in range(600)]
    messages = [patterned(size, i) + i.to_bytes(4, "little") for i, size in enumerate(sizes)]
    for message in messages:  # all before anything moves
        a.send(peer, message[:10], message[10:])
    poll_until([a, b], lambda: len(b.messages) == len(messages) and len(a.sent) == len(messages))
    assert b.messages == messages
    assert sorted(a.sent) == list(range(len(messages)))


def test_all_to_all(kind: str) -> None:
    ends = [End(kind) for _ in range(5)]
    for i, end in enumerate(ends):
        for j, other in enumerate(ends):  # to itself too
            peer = end.connect(other)
            for k in range(20):
                end.send(peer, bytes([i, j, k]) * (1 + 999 * k))
    poll_until(ends, lambda: all(len(end.messages) == 100 for end in ends))
    for j, end in enumerate(ends):
        for i in range(5):
            from_i = [message for message in end.messages if message[0] == i]
            assert from_i == [bytes([i, j, k]) * (1 + 999 * k) for k in range(20)]


def test_between_processes(ucx_kind: str) -> None:
    messages = [patterned(size, i) for i, size in enumerate(SIZES)]
    with Process(ucx_kind, "echo") as other:
        for message in messages:
            other.end.send(other.peer, message)
        other.end.wait_until(lambda: len(other.end.messages) == len(messages))
        assert other.end.messages == messages


def test_transport_that_was_chosen_is_named(ucx_kind: str) -> None:
    a, b, peer = pair(ucx_kind)
    a.send(peer, b"x")
    poll_until([a, b], lambda: bool(b.messages))
    settle([a, b])
    text = a.transport.describe()
    assert text.startswith("UCX 1.")
    over = text.split(" connected over ")[1]
    assert ("tcp/" in over) == (ucx_kind == "ucx-tcp"), text


def test_disconnect_flushes(kind: str) -> None:
    a, b, peer = pair(kind)
    back = b.connect(a)
    messages = [patterned(i * 3001, i) for i in range(60)]
    for message in messages:
        a.send(peer, message)
    with driven(b):
        a.transport.disconnect(peer)
    a.progress()
    assert sorted(a.sent) == list(range(60))
    # The other direction has a connection of its own.
    b.send(back, b"still here")
    poll_until([a, b], lambda: bool(a.messages) and len(b.messages) == 60)
    assert b.messages == messages
    assert a.messages == [b"still here"]
    # And there can be a new one.
    a.send(a.connect(b), b"again")
    poll_until([a, b], lambda: len(b.messages) == 61)
    assert not a.failures and not b.failures


def test_messages_that_come_while_disconnecting_are_kept(kind: str) -> None:
    a, b, c = End(kind), End(kind), End(kind)
    to_b, to_a, from_c = a.connect(b), b.connect(a), c.connect(a)
    a.send(to_b, b"x" * 1_000_000)
    b.send(to_a, b"from b")
    c.send(from_c, b"from c")
    settle([b, c])
    with driven(b):
        a.transport.disconnect(to_b)
    poll_until([a, c], lambda: len(a.messages) == 2)
    assert sorted(a.messages) == [b"from b", b"from c"]


def test_leaving_process_is_heard_out(ucx_kind: str) -> None:
    with Process(ucx_kind, "leave", 200) as other:
        other.end.wait_until(lambda: len(other.end.messages) == 200)
        assert other.end.messages == [
            i.to_bytes(4, "little") * (i * 37 % 20000) for i in range(200)
        ]
        # This side is still connected, so the end of the process is a failure, after its messages.
        other.end.wait_until(lambda: bool(other.end.failures), 5)


@pytest.mark.parametrize("damage", ["empty", "random", "cut", "flipped", "of another kind"])
def test_wrong_addresses_are_refused(kind: str, damage: str) -> None:
    a, b = End(kind), End(kind)
    address = bytearray(b.transport.address())
    if damage == "empty":
        address = bytearray()
    elif damage == "random":
        address = bytearray(random.Random(5).randbytes(300))
    elif damage == "cut":
        address = address[: len(address) // 2]
    elif damage == "flipped":
        address[len(address) // 2] ^= 1
    else:
        address = bytearray(End("ucx-any" if kind == "memory" else "memory").transport.address())
    with pytest.raises(EngineError, match="address"):
        a.transport.connect(bytes(address))
    a.send(a.connect(b), b"well")
    poll_until([a, b], lambda: b.messages == [b"well"])
