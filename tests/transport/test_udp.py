"""Datagrams: whatever a network does to them, messages come once, in order and unchanged; and
nothing that others send has an effect."""

from __future__ import annotations

import contextlib
import random
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterator

import pytest
from _engine_tests.transport import Clock, Transport
from ends import End, patterned, poll_until

from omnihvd.engine import EngineError, session

Send = Callable[[bytes], object]
MAGIC = b"omnihvd udp 1"
SECRET = "a secret of the test"


def fnv1a(data: bytes) -> int:
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


def port_of(end: End) -> int:
    return int(end.transport.describe().split("port ")[1].split(",")[0].split(";")[0])


def with_port(address: bytes, port: int, new: int) -> bytes:
    body = address[len(MAGIC) + 8 :].replace(struct.pack("<Q", port), struct.pack("<Q", new))
    return MAGIC + struct.pack("<Q", fnv1a(body)) + body


def protected(mtu: int = 0, secret: str = SECRET) -> End:
    end = End("udp")
    end.transport = Transport.udp(secret, mtu)
    return end


def refused() -> int:
    return int(session.stats()["datagrams"]["refused"])


class Between:
    """A network between one transport and another, which knows no mercy."""

    def __init__(self, target: int, mutate: bool, seed: int) -> None:
        self.outside, self.inside = (socket.socket(type=socket.SOCK_DGRAM) for _ in range(2))
        self.outside.bind(("127.0.0.1", 0))
        self.inside.connect(("127.0.0.1", target))
        self.port = self.outside.getsockname()[1]
        self.mutate, self.random, self.held = mutate, random.Random(seed), [b""]
        self.sender: tuple[str, int] | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            for ready in select.select([self.outside, self.inside], [], [], 0.05)[0]:
                with contextlib.suppress(OSError):
                    if ready is self.outside:
                        data, self.sender = ready.recvfrom(65536)
                        self._pass(data, self.inside.send, self._answer)
                    elif self.sender:
                        self._pass(ready.recv(65536), self._answer, self.inside.send)

    def _answer(self, data: bytes) -> None:
        assert self.sender
        self.outside.sendto(data, self.sender)

    def _pass(self, data: bytes, send: Send, back: Send) -> None:
        chance = self.random.random
        if self.mutate and chance() < 0.2:
            wrong = bytearray(data)
            wrong[self.random.randrange(len(wrong))] ^= 1 << self.random.randrange(8)
            for other in (wrong, data[: self.random.randrange(len(data))], data + b"x"):
                send(bytes(other))
        if chance() < 0.05:
            back(data)
        if chance() < 0.05:  # lost
            return
        send(data)
        if chance() < 0.1:  # and again, now or later
            self.held.append(data)
        if chance() < 0.1:
            send(self.random.choice(self.held) or data)

    def end(self) -> None:
        self._stop.set()
        self._thread.join()
        self.outside.close()
        self.inside.close()


class Relay:
    """Carries packets to one transport when told to, and keeps those it has carried."""

    largest = 65536  # bytes of a packet that it carries

    def __init__(self, target: int) -> None:
        self._socket = socket.socket(type=socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self._socket.setblocking(False)
        self.port = self._socket.getsockname()[1]
        self._target = ("127.0.0.1", target)
        self._sender: tuple[str, int] | None = None
        self.carried: list[bytes] = []  # to the target

    def carry(self) -> bool:
        with contextlib.suppress(BlockingIOError):
            while True:
                data, source = self._socket.recvfrom(65536)
                if len(data) > self.largest:
                    continue
                if source == self._target:
                    assert self._sender
                    self._socket.sendto(data, self._sender)
                else:
                    self._sender = source
                    self.carried.append(data)
                    self._socket.sendto(data, self._target)
        return True

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()


@contextlib.contextmanager
def between(end: End, mutate: bool = False, seed: int = 1) -> Iterator[bytes]:
    """The address of the end, as though it were beyond a bad network."""
    port = port_of(end)
    network = Between(port, mutate, seed)
    try:
        yield with_port(end.transport.address(), port, network.port)
    finally:
        network.end()


@pytest.mark.parametrize("mutate", [False, True])
def test_a_bad_network_changes_nothing(mutate: bool) -> None:
    a, b = protected(mtu=1500), protected(mtu=1500)
    sizes = [0, 1, 1400, 1443, 1444, 1445, 100_000, 7, 0, 300_001]
    messages = [patterned(size, i) for i, size in enumerate(sizes)]
    before = refused()
    with between(b, mutate) as address:
        peer = a.transport.connect(address)
        for message in messages:
            a.send(peer, message[:5], message[5:])
        poll_until([a, b], lambda: len(b.messages) == len(sizes) == len(a.sent))
        assert b.messages == messages
        counts = session.stats()["datagrams"]
        assert counts["again"] > 0 and counts["repeated"] > 0
        assert refused() > before  # also what comes back to its sender
        a.transport.close()
    a.transport = None


def test_strangers_are_counted_and_have_no_effect() -> None:
    a, b = End("udp"), End("udp")
    peer = a.connect(b)
    a.send(peer, b"first")
    poll_until([a, b], lambda: bool(b.messages))
    before, rng = refused(), random.Random(2)
    heads = [bytes([flow, 0, 0, kind]) for flow in (0, 1, 255) for kind in range(8)]
    forged = [b"", b"x", *heads]
    forged += [head + rng.randbytes(size) for head in heads for size in (8, 16, 24, 40, 500)]
    with socket.socket(type=socket.SOCK_DGRAM) as stranger:
        for end in (a, b):
            for data in forged:
                stranger.sendto(data, ("127.0.0.1", port_of(end)))
                poll_until([a, b], lambda: True)
                end.progress()
    poll_until([a, b], lambda: refused() - before == 2 * len(forged))
    a.send(peer, b"second")
    poll_until([a, b], lambda: len(b.messages) == 2)
    assert b.messages == [b"first", b"second"] and not a.failures and not b.failures


def test_who_has_another_secret_is_not_heard() -> None:
    a, b = protected(secret="another secret of a test"), protected()
    before = refused()
    a.send(a.connect(b), b"let me in")
    poll_until([a, b], lambda: refused() > before)
    assert not b.messages


def test_who_has_no_secret_is_told_so() -> None:
    with pytest.raises(EngineError, match=r"cannot connect to .*all ranks need the same"):
        End("udp").connect(protected())


@pytest.mark.parametrize("kinds", [("udp", "ucx-tcp"), ("ucx-tcp", "udp")])
def test_another_transport_is_named(kinds: tuple[str, str]) -> None:
    a, b = End(kinds[0]), End(kinds[1])
    with pytest.raises(EngineError, match="set OMNIHVD_TRANSPORT alike everywhere"):
        a.connect(b)


@pytest.mark.parametrize("mtu", [576, 1500, 9000])
def test_datagrams_are_no_larger_than_the_mtu(mtu: int) -> None:
    a, b = protected(mtu), protected(mtu)
    peer = a.connect(b)
    before = session.stats()["datagrams"]["sent"]
    a.send(peer, bytes(1_000_000))
    poll_until([a, b], lambda: bool(b.messages))
    assert f"over udp/{mtu - 56}" in a.transport.describe()
    sent = session.stats()["datagrams"]["sent"] - before
    assert -(-1_000_000 // (mtu - 56)) <= sent < 1.5 * 1_000_000 / (mtu - 56)


def beyond(largest: int, seconds: int, silent: range) -> tuple[End, End]:
    """Two ends after so long, one of them beyond a path that swallows larger packets. It does
    nothing in the seconds `silent`, and two seconds later the path lets all through."""
    ends, clocks = [End("udp"), End("udp")], [Clock(speed=1), Clock(speed=1)]
    for end, clock in zip(ends, clocks):
        end.transport = Transport.udp("", 1500, clock, False)
    a, b = ends
    with Relay(port_of(b)) as relay:
        peer = a.transport.connect(with_port(b.transport.address(), port_of(b), relay.port))
        for size in (100, 3000, 100):
            a.send(peer, patterned(size, size))
        for step in range(10 * seconds):
            relay.largest = largest if step < 10 * silent.stop + 20 else 65536
            for clock in clocks:
                clock.advance(100_000)
            for end in ends:
                if end is a or step // 10 not in silent:
                    end.progress()
                relay.carry()
    return a, b


def test_a_path_that_swallows_full_datagrams_is_named() -> None:
    a, b = beyond(600, 60, range(60, 60))
    assert b.messages == [patterned(100, 100)]
    said = "it answers, but full datagrams do not get through: set OMNIHVD_UDP_MTU to what"
    assert [said in why for _, why in a.failures] == [True]


def test_a_peer_that_does_nothing_for_a_while_is_no_such_path() -> None:
    a, b = beyond(600, 60, range(1, 29))
    assert [len(message) for message in b.messages] == [100, 3000, 100]
    assert not a.failures


def test_an_mtu_that_cannot_be() -> None:
    with pytest.raises(EngineError, match=r"OMNIHVD_UDP_MTU=100: allowed: 0, 576 .. 65535"):
        Transport.udp("", 100)


def test_an_interface_that_is_not_there_is_named() -> None:
    made = session.Settings()
    made.transport, made.udp_interface = "udp", "none0"
    said = "OMNIHVD_UDP_INTERFACE=none0: there is no such interface that is up"
    with pytest.raises(EngineError, match=said):
        session.Engine(made).describe_transport()
