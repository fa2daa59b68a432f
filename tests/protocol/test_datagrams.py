"""Loss recovery: each message comes once and unchanged, whatever the network does to datagrams."""

from __future__ import annotations

import heapq
import itertools
import random
from dataclasses import dataclass, field
from typing import Any

import pytest
from _engine_tests.datagrams import Receiver, Sender
from hypothesis import given
from hypothesis import strategies as st

from omnihvd.engine import EngineError

LARGEST = 5000


@dataclass
class Network:
    """One direction of a pair, with acknowledgements the other way. Times in microseconds."""

    sizes: list[int]
    payload: int = 100
    window: int = 64
    ordered: bool = False
    first: int = 0
    start: int = 1 << 33
    seed: int = 0
    loss: float = 0.0  # of datagrams, and of acknowledgements
    duplication: float = 0.0
    jitter: int = 0  # on top of the delay: more than a datagram's time reorders
    delay: int = 200  # one way
    spacing: int = 0  # a datagram's time on the link: the others queue behind it
    paced: bool = False
    given: list[bytes] = field(default_factory=list)
    done: list[int] = field(default_factory=list)
    most_kept: int = 0
    most_held: int = 0

    def __post_init__(self) -> None:
        self.sender = Sender(self.first, self.payload, self.window)
        if self.paced:
            self.sender.pace(28)
        self.receiver = Receiver(self.first, self.payload, self.window, LARGEST, self.ordered)
        self.messages = [content(i, size) for i, size in enumerate(self.sizes)]
        self.random = random.Random(self.seed)
        self.now = self.free = self.start
        self._events: list[tuple[int, int, str, Any]] = []
        self._count = itertools.count()

    def run(self) -> Network:
        for name, message in enumerate(self.messages):
            self.sender.send(name, len(message))
        for _ in range(100_000 + 2000 * len(self.messages)):
            self._send()
            if self.sender.idle and not self._events:
                return self
            self._step()
        raise AssertionError(f"stuck: {self.done} of {len(self.messages)} are done")

    def _send(self) -> None:
        while self.now >= self.free and (piece := self.sender.next(self.now)):
            header, name, size = piece
            data = self.messages[name][header[3] : header[3] + size]
            assert len(data) == size
            self.free = max(self.free, self.now) + self.spacing
            self._travel("datagram", (header, data))
        self.most_kept = max(self.most_kept, self.sender.kept)

    def _travel(self, kind: str, what: Any) -> None:
        for _ in range(1 + (self.random.random() < self.duplication)):
            if self.random.random() >= self.loss:
                at = self.now + self.delay + self.random.randint(0, self.jitter)
                heapq.heappush(self._events, (at, next(self._count), kind, what))

    def _step(self) -> None:
        # While the link is busy nothing can go; then the sender may have more to say.
        wake = self.free if self.now < self.free else self.sender.wake_at()
        if self._events and (wake is None or self._events[0][0] <= wake):
            self.now, _, kind, what = heapq.heappop(self._events)
            self._arrive(kind, what)
        else:
            assert wake is not None, "nobody would ever wake up"
            self.now = max(self.now, wake)

    def _arrive(self, kind: str, what: Any) -> None:
        if kind == "acknowledgement":
            done = self.sender.on_acknowledgement(self.now, what)
            assert done is not None, "refused"
            self.done += done
            return
        assert self.receiver.on_datagram(*what) in ("fresh", "duplicate")
        self.most_held = max(self.most_held, self.receiver.held_bytes)
        while (message := self.receiver.next_message()) is not None:
            self.given.append(message)
        assert self.receiver.owes
        self._travel("acknowledgement", self.receiver.acknowledgement())
        assert not self.receiver.owes


def content(number: int, size: int) -> bytes:
    """Bytes that differ at every offset and for every message."""
    return bytes((number * 131 + i * 7 + (i >> 8)) % 251 for i in range(size))


networks = st.builds(
    Network,
    sizes=st.lists(
        st.one_of(st.sampled_from([0, 1, 99, 100, 101, 200]), st.integers(0, LARGEST)), max_size=12
    ),
    payload=st.sampled_from([1, 7, 100, 1400]).filter(bool),
    window=st.sampled_from([1, 2, 3, 8, 64, 1000]),
    ordered=st.booleans(),
    first=st.one_of(st.just(0), st.integers(2**32 - 60, 2**32 - 1), st.just(2**31 - 3)),
    start=st.sampled_from([1 << 33, (1 << 33) - 1000, (1 << 33) + (1 << 31) - 1000]),
    seed=st.integers(0, 1 << 30),
    loss=st.sampled_from([0, 0, 0.01, 0.1, 0.3]),
    duplication=st.sampled_from([0, 0.1, 0.5]),
    jitter=st.sampled_from([0, 50, 1000]),
    spacing=st.sampled_from([0, 10]),
    paced=st.booleans(),
)


@given(network=networks)
def test_every_message_comes_once_and_unchanged(network: Network) -> None:
    if network.payload == 1:
        network.sizes = [size % 300 for size in network.sizes]
        network.__post_init__()
    network.run()
    given_, sent = network.given, network.messages
    assert given_ == sent if network.ordered else sorted(given_) == sorted(sent)
    assert sorted(network.done) == list(range(len(sent)))
    assert network.receiver.held_bytes == 0 and network.sender.kept == 0
    assert network.most_kept <= 3 * network.window
    assert network.most_held <= network.window * network.payload + 2 * LARGEST


@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_sent_twice_without_a_loss(seed: int) -> None:
    network = Network([5000] * 40, delay=500, jitter=100, spacing=10, seed=seed).run()
    assert network.sender.sent == 40 * 50 and network.sender.again == 0
    assert 1000 <= network.sender.round_trip <= 1200


@pytest.mark.parametrize(("loss", "most"), [(0.0001, 1.01), (0.001, 1.02), (0.01, 1.08)])
def test_time_and_datagrams_are_nearly_those_of_ideal_repetition(loss: float, most: float) -> None:
    """A link that is the bottleneck: 20,000 datagrams, 10 microseconds each."""
    sizes = [5000] * 400
    lossless = Network(sizes, window=1000, delay=500, spacing=10).run()
    lossy = Network(sizes, window=1000, delay=500, spacing=10, loss=loss, seed=3).run()
    assert lossy.now - lossy.start <= most * (lossless.now - lossless.start)
    assert lossy.sender.sent <= lossless.sender.sent / (1 - loss) * 1.005


@pytest.mark.parametrize("loss", [0, 0.001, 0.01, 0.05])
def test_a_paced_sender_finds_the_rate_of_the_link_and_keeps_it(loss: float) -> None:
    """128 bytes with headers, 10 microseconds each: loss that is no congestion slows nothing."""
    network = Network([5000] * 400, window=1000, delay=500, spacing=10, loss=loss, paced=True)
    network.run()
    assert 0.9 * 12.8 < network.sender.bandwidth < 1.3 * 12.8
    assert network.now - network.start < 1.25 * 20_000 * 10 / (1 - loss)
    assert network.sender.sent <= 20_000 / (1 - loss) * 1.01


def test_a_receiver_that_was_stopped_at_first_slows_nothing_down() -> None:
    """The first rate that is measured is of a byte in half a minute."""
    network = Network([1], delay=15_000_000, paced=True).run()
    network.delay, begun = 200, network.now
    network.messages = [content(i, 5000) for i in range(10)]
    network.run()
    assert network.given[1:] == network.messages
    assert network.now - begun < 2_000_000


def test_a_paced_sender_that_hears_nothing_goes_on_asking() -> None:
    sender = Sender(0, 100, 64)
    sender.pace(28)
    sender.send(0, 5000)
    begun = sum(sender.next(0) is not None for _ in range(50))
    assert begun == 32
    now = 0
    for _ in range(8):
        now = sender.wake_at()
        assert sender.next(now) is not None, "one probe"
        assert sender.next(now) is None


def test_a_lost_datagram_holds_up_no_other_message() -> None:
    sender, receiver = Sender(0, 100, 64), Receiver(0, 100, 64, LARGEST, False)
    for name in range(3):
        sender.send(name, 100)
    pieces = [sender.next(0) for _ in range(3)]
    for header, name, size in pieces[1:]:
        assert receiver.on_datagram(header, content(name, size)) == "fresh"
    assert [receiver.next_message() for _ in range(3)] == [content(1, 100), content(2, 100), None]


def test_a_limit_holds_while_nothing_is_heard() -> None:
    sender = Sender(0, 100, 64)
    sender.set_limit(5)
    sender.send(0, 5000)
    assert sum(sender.next(0) is not None for _ in range(50)) == 5
    now, waits = 0, []
    for _ in range(12):
        wake = sender.wake_at()
        waits.append(wake - now)
        now = wake
        assert sender.next(now) is not None, "one probe"
        assert sender.next(now) is None
    assert waits == sorted(waits) and waits[0] == 100_000 and waits[-1] == 1_000_000
    assert sender.under_way == 5


def test_a_clock_put_forward_is_no_round_trip_to_wait_for() -> None:
    """python -m simulator --faults found it: with each further loss another minute passed."""
    sender = Sender(0, 100, 64)
    for name in range(2):
        sender.send(name, 100)
    assert sender.next(0) is not None
    jumped = 60_000_000
    assert sender.on_acknowledgement(jumped, (1, 0, [])) == [0]
    assert sender.next(jumped) is not None
    assert sender.wake_at() == jumped + 1_000_000


HOSTILE = [
    ((0, 0, 100, 0), b"x" * 99),  # short
    ((0, 0, 100, 0), b"x" * 101),  # long
    ((0, 0, 0, 0), b"x"),
    ((0, 0, LARGEST + 1, 0), b"x" * 100),
    ((0, 0, 2**32 - 1, 0), b"x" * 100),
    ((5, 0, 500, 50), b"x" * 100),  # not where a datagram begins
    ((5, 0, 500, 500), b""),  # beyond the end
    ((5, 0, 500, 600), b"x" * 100),
    ((0, 0, 500, 100), b"x" * 100),  # of a message before the first
    ((64, 0, 100, 0), b"x" * 100),  # beyond the window
    ((2**31, 0, 100, 0), b"x" * 100),
    ((2**32 - 1, 0, 100, 0), b"x" * 100),  # before the first
    ((11, 0, 200, 100), b"x" * 100),  # the message there has another size
    ((12, 0, 300, 0), b"x" * 100),  # overlaps it
    ((9, 0, 300, 0), b"x" * 100),
]


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize(("header", "data"), HOSTILE)
def test_impossible_datagrams_are_refused_without_effect(
    ordered: bool, header: tuple[int, ...], data: bytes
) -> None:
    receiver = Receiver(0, 100, 64, LARGEST, ordered)
    assert receiver.on_datagram((10, 7, 300, 0), content(0, 100)) == "fresh"
    held = receiver.held_bytes
    assert receiver.on_datagram(header, data) == "refused"
    assert receiver.held_bytes == held
    assert receiver.acknowledgement() == (0, 7, [0, 4])


@given(seed=st.integers(0, 1 << 30), ordered=st.booleans())
def test_memory_is_bounded_whatever_a_peer_says(seed: int, ordered: bool) -> None:
    rng = random.Random(seed)
    receiver = Receiver(0, 100, 64, LARGEST, ordered)
    for _ in range(300):
        size = rng.choice([0, 1, 100, 101, rng.randrange(LARGEST + 1)])
        offset = 100 * rng.randrange(max(1, -(-size // 100)))
        header = (rng.randrange(80), rng.randrange(2**32), size, offset)
        receiver.on_datagram(header, bytes(max(0, min(100, size - offset))))
        assert receiver.held_bytes <= 64 * 100 + 2 * LARGEST
        while receiver.next_message() is not None:
            pass
        assert len(receiver.acknowledgement()[2]) <= 8


@pytest.mark.parametrize(
    "what",
    [
        (11, 0, []),  # never sent
        (0, 0, [0, 0b100]),
        (10, 0, [1]),
        (2**31, 0, []),
        (5, 1, []),  # from a time to come
    ],
)
def test_impossible_acknowledgements_are_refused_without_effect(what: Any) -> None:
    sender = Sender(0, 100, 64)
    sender.send(0, 1000)
    while sender.next(0):
        pass
    assert sender.on_acknowledgement(0, what) is None
    assert sender.under_way == 10
    assert sender.on_acknowledgement(0, (8, 0, [0b11])) == [0]
    assert sender.on_acknowledgement(0, (3, 0, [])) == [], "an old one is harmless"
    assert sender.idle


@pytest.mark.parametrize("window", [0, 1 << 16])
def test_windows_that_cannot_be(window: int) -> None:
    with pytest.raises(EngineError, match="a window of datagrams has 1 to 65535"):
        Sender(0, 100, window)
