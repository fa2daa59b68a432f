"""A paced sender beside others on one link. Its queue drops what does not fit."""

from __future__ import annotations

import heapq
import itertools
from typing import Any

import pytest
from _engine_tests.datagrams import Receiver, Sender

SPACING, DELAY, QUEUE = 100, 1000, 150  # microseconds a datagram, and one way; datagrams
PAYLOAD, MESSAGE, WAITING, KEPT = 1400, 14_000, 40, 4096
SECOND = 1_000_000


class Link:
    """One clock, one queue before one link; what arrives is told to its flow at once."""

    def __init__(self) -> None:
        self.now = self.free = 0
        self._events: list[tuple[int, int, Any, Any]] = []
        self._count = itertools.count()

    def at(self, time: int, what: Any, *args: Any) -> None:
        heapq.heappush(self._events, (time, next(self._count), what, args))

    def carry(self, arrived: Any, *args: Any) -> bool:
        """False: the queue is full."""
        if self.free - self.now > QUEUE * SPACING:
            return False
        self.free = max(self.free, self.now) + SPACING
        self.at(self.free + DELAY, arrived, *args)
        return True

    def run(self, until: int) -> None:
        while self._events and self._events[0][0] <= until:
            self.now, _, what, args = heapq.heappop(self._events)
            what(*args)


class Reno:
    """As much under way as there is a window for, which a loss halves, once a round trip."""

    def __init__(self, link: Link) -> None:
        self.link, self.window, self.threshold = link, 10.0, 1e9
        self.under_way = self.delivered = 0
        self.deaf_until = 0

    def send(self) -> None:
        while self.under_way < int(self.window):
            self.under_way += 1
            if not self.link.carry(self.arrived, self.link.now):
                self.link.at(self.link.now + 2 * DELAY + QUEUE * SPACING, self.lost)
                return

    def arrived(self, sent_at: int) -> None:
        self.link.at(self.link.now + DELAY, self.acknowledged)
        self.delivered += 1

    def acknowledged(self) -> None:
        self.under_way -= 1
        self.window += 1 if self.window < self.threshold else 1 / self.window
        self.send()

    def lost(self) -> None:
        self.under_way -= 1
        if self.link.now >= self.deaf_until:
            self.window = self.threshold = max(2.0, self.window / 2)
            self.deaf_until = self.link.now + 2 * DELAY + QUEUE * SPACING
        self.send()


class Paced:
    def __init__(self, link: Link) -> None:
        self.link, self.delivered, self.given = link, 0, itertools.count()
        self.sender, self.wake = Sender(0, PAYLOAD, KEPT), -1
        self.receiver = Receiver(0, PAYLOAD, KEPT, MESSAGE, False)
        self.sender.pace(28)
        for _ in range(WAITING):
            self.sender.send(next(self.given), MESSAGE)

    def send(self) -> None:
        while piece := self.sender.next(self.link.now):
            header, _, size = piece
            self.link.carry(self.arrived, header, bytes(size))
        wake = self.sender.wake_at()
        if wake is not None and wake != self.wake:
            self.wake = wake
            self.link.at(max(wake, self.link.now + 1), self.send)

    def arrived(self, header: Any, data: bytes) -> None:
        self.delivered += self.receiver.on_datagram(header, data) == "fresh"
        while self.receiver.next_message() is not None:
            pass
        self.link.at(self.link.now + DELAY, self.acknowledged, self.receiver.acknowledgement())

    def acknowledged(self, acknowledgement: Any) -> None:
        for _ in self.sender.on_acknowledgement(self.link.now, acknowledgement):
            self.sender.send(next(self.given), MESSAGE)
        self.send()


def shares(*flows: Any, link: Link, first: float = 0.5, until: float = 8) -> list[float]:
    """Shares of what was delivered in the second half of that time; later flows begin later."""
    for i, flow in enumerate(flows):
        link.at(int(i * first * SECOND), flow.send)
    link.run(int(until / 2 * SECOND))
    before = [flow.delivered for flow in flows]
    link.run(int(until * SECOND))
    counts = [flow.delivered - b for flow, b in zip(flows, before)]
    assert sum(counts) > 0.9 * until / 2 * SECOND / SPACING, "the link was idle"
    return [count / sum(counts) for count in counts]


@pytest.mark.parametrize("others", [1, 2])
def test_beside_flows_that_fill_the_queue_it_has_its_share(others: int) -> None:
    link = Link()
    mine, *_ = shares(Paced(link), *(Reno(link) for _ in range(others)), link=link)
    assert 0.4 <= mine <= 0.6


def test_two_share_a_link() -> None:
    link = Link()
    for share in shares(Paced(link), Paced(link), link=link):
        assert 0.35 <= share <= 0.65


def test_what_the_rival_leaves_is_taken() -> None:
    link = Link()
    flow, rival = Paced(link), Reno(link)
    shares(flow, rival, link=link, until=4)
    rival.window = 0
    rival.send = lambda: None  # type: ignore[method-assign]
    before, link_free = flow.delivered, link.now
    link.run(link_free + SECOND)
    assert flow.delivered - before > 0.85 * SECOND / SPACING
