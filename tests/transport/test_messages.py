"""Messages arrive once, whole, unchanged and in order."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from ends import End, Process, patterned, poll_until, settle

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


def test_between_processes(process_kind: str) -> None:
    messages = [patterned(size, i) for i, size in enumerate(SIZES)]
    with Process(process_kind, "echo") as other:
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


def test_disconnect_does_not_wait_and_loses_nothing(kind: str) -> None:
    a, b, peer = pair(kind)
    back = b.connect(a)
    messages = [patterned(i * 3001, i) for i in range(60)]
    for message in messages:
        a.send(peer, message)
    a.transport.disconnect(peer)  # while b takes nothing
    b.send(back, b"still here")
    poll_until([a, b], lambda: bool(a.messages) and len(b.messages) == 60 == len(a.sent))
    assert b.messages == messages
    assert a.messages == [b"still here"]
    # And there can be a new one.
    a.send(a.connect(b), b"again")
    poll_until([a, b], lambda: len(b.messages) == 61)
    assert not a.failures and not b.failures


def test_connections_to_one_address_are_one(kind: str) -> None:
    a, b, peer = pair(kind)
    back = b.connect(a)
    a.send(peer, b"first")
    poll_until([a, b], lambda: len(b.messages) == 1)
    descriptors, mappings = resources()
    for i in range(100):
        assert a.connect(b) == peer
        a.send(peer, bytes([i]) * 1000)
        b.send(back, bytes([i]) * 1000)
        poll_until([a, b], lambda: len(a.messages) == 1)
        a.messages.clear()
        a.transport.disconnect(peer)
    now = resources()
    assert now[0] <= descriptors + 2 and now[1] <= mappings + 20
    a.transport.disconnect(peer)
    assert a.connect(b) == peer, "it is kept for the next"


def resources() -> tuple[int, int]:
    """Open descriptors and mapped pieces of memory of this process."""
    mappings = Path("/proc/self/maps").read_text().count("\n")
    return len(list(Path("/proc/self/fd").iterdir())), mappings


def test_detached_send_goes_on_from_a_copy(kind: str) -> None:
    a, b, peer = pair(kind)
    cookies, buffers = [], []
    for i in range(80):  # more than fits into what the kernel or shared memory holds
        parts = [bytearray(patterned(size, i)) for size in (64, 3000 * (i % 2), 70_000)]
        buffers.append(parts)
        cookies.append(a.send(peer, *(part for part in parts if part)))
    a.progress()
    begun = len(a.sent)
    if kind != "memory":
        assert begun < 80
    for cookie in cookies[begun:]:
        a.transport.detach(cookie)
    for parts in buffers[begun:]:
        for part in parts:
            part[:] = bytes(len(part))
    poll_until([a, b], lambda: len(b.messages) == 80)
    assert b.messages == [
        b"".join(patterned(size, i) for size in (64, 3000 * (i % 2), 70_000)) for i in range(80)
    ]
    settle([a, b])
    assert sorted(a.sent) == cookies[:begun], "no word of those that were detached"


def test_leaving_process_is_heard_out(process_kind: str) -> None:
    with Process(process_kind, "leave", 200) as other:
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
    said = "not the address of a .* transport of this version|its address is of the transport"
    damaged = "the address of a .* transport was damaged on its way"
    if damage == "empty":
        address = bytearray()
    elif damage == "random":
        address = bytearray(random.Random(5).randbytes(300))
    elif damage == "cut":
        address, said = address[: len(address) // 2], damaged
    elif damage == "flipped":
        address[len(address) // 2] ^= 1
        said = damaged
    else:
        address = bytearray(End("ucx-any" if kind == "memory" else "memory").transport.address())
    if kind == "memory":
        said = "not the address of a memory transport"
    with pytest.raises(EngineError, match=said):
        a.transport.connect(bytes(address))
    a.send(a.connect(b), b"well")
    poll_until([a, b], lambda: b.messages == [b"well"])
