"""UDP outlives stops: of one process or of all, for any length of time, no message is lost, doubled
or overtaken, and no peer is given up before it had a chance to answer."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Collection
from typing import Union

import pytest
from _engine_tests.transport import Clock, Transport
from ends import End, Process, patterned, poll_until
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_udp import Relay, port_of, refused, with_port

SECOND = 1_000_000
GIVEN_UP = "it has sent nothing for 30 s"


class Pair:
    """Two ends, connected both ways, each with a clock that the test puts forward."""

    def __init__(self, watches: bool = True) -> None:
        self.clocks = [Clock(speed=1), Clock(speed=1)]
        self.ends = [End("udp"), End("udp")]
        for end, clock in zip(self.ends, self.clocks):
            end.transport = Transport.udp("", 0, clock, watches)
        self.peers = [self.ends[0].connect(self.ends[1]), self.ends[1].connect(self.ends[0])]
        self.sent: list[list[bytes]] = [[], []]  # by whom

    def send(self, who: int, size: int) -> None:
        message = patterned(size, 2 * len(self.sent[who]) + who)
        self.ends[who].send(self.peers[who], message)
        self.sent[who].append(message)

    def go_on(self, seconds: float, stopped: Collection[int] = (), steps: int = 100) -> None:
        """So long, in which some of the two are stopped."""
        for _ in range(steps):
            for clock in self.clocks:
                clock.advance(int(seconds * SECOND / steps))
            for who, end in enumerate(self.ends):
                if who not in stopped:
                    end.progress()

    def stop(self, seconds: float, stopped: Collection[int]) -> None:
        all_of_them = len(stopped) == 2
        self.go_on(seconds, stopped, 1 if all_of_them else max(1, int(4 * seconds)))

    def check(self) -> None:
        """All that was sent has come, or comes within ten seconds."""
        for _ in range(100):
            self.go_on(0.1)
            if [len(end.messages) for end in self.ends] == [len(s) for s in reversed(self.sent)]:
                break
        for who, end in enumerate(self.ends):
            assert not end.failures
            assert end.messages == self.sent[1 - who]


Event = tuple[str, tuple[int, ...], Union[int, float]]
sends = st.tuples(
    st.just("send"), st.sampled_from([(0,), (1,)]), st.sampled_from([0, 1, 70_000, 3_000_000])
)
alone = st.tuples(st.just("stop"), st.sampled_from([(0,), (1,)]), st.floats(0.1, 500))
both = st.tuples(st.just("stop"), st.just((0, 1)), st.floats(0.1, 1e6))
awake = st.tuples(st.just("stop"), st.just(()), st.floats(0.001, 40))


def play(pair: Pair, events: list[Event]) -> None:
    for what, who, number in events:
        if what == "send":
            pair.send(who[0], int(number))
        else:
            pair.stop(number, who)
    pair.check()


# Datagrams get lost while the first round trip that is measured seems to take minutes.
LOST_IN_A_STOP = [
    ("stop", (), 1.0),
    ("send", (1,), 70_000),
    ("stop", (0,), 207.0),
    ("send", (1,), 3_000_000),
    ("stop", (0,), 1.0),
]


@settings(max_examples=25, deadline=None)
@given(events=st.lists(st.one_of(sends, sends, alone, both, awake), max_size=10))
@example(events=LOST_IN_A_STOP)
def test_on_one_host_stops_of_any_length_change_nothing(events: list[Event]) -> None:
    play(Pair(), events)


@settings(max_examples=25, deadline=None)
@given(events=st.lists(st.one_of(sends, sends, both, awake), max_size=10))
def test_a_job_on_several_hosts_that_is_stopped_as_a_whole_goes_on(events: list[Event]) -> None:
    play(Pair(watches=False), events)


@pytest.mark.parametrize("stopped", [(0,), (1,)])
def test_who_was_stopped_for_two_minutes_is_still_known(stopped: tuple[int, ...]) -> None:
    pair = Pair()
    for who in range(2):
        pair.send(who, 100_000)
    pair.go_on(1)
    for who in range(2):
        pair.send(who, 3_000_000)  # more than is under way at once
    pair.ends[stopped[0]].progress()
    pair.stop(130, stopped)
    for who in range(2):
        pair.send(who, 10)
    pair.check()


def test_a_question_from_before_a_stop_gives_nobody_up() -> None:
    """One end has waited for an answer nearly as long as it does, and is then stopped itself."""
    pair = Pair(watches=False)
    pair.go_on(1)
    pair.stop(29, [1])
    pair.stop(1000, [0, 1])
    pair.send(0, 100)
    pair.check()


def test_who_does_not_answer_after_a_stop_either_is_given_up() -> None:
    pair = Pair(watches=False)
    pair.go_on(1)
    pair.stop(10, [1])
    pair.stop(1000, [0, 1])
    pair.stop(15, [1])
    assert not pair.ends[0].failures, "29 s"
    pair.stop(10, [1])
    assert [GIVEN_UP in why for _, why in pair.ends[0].failures] == [True]


def test_who_was_given_up_learns_it_when_it_goes_on() -> None:
    """Else it would wait for ever: what it sends would still be taken, and nothing come back."""
    pair = Pair(watches=False)
    pair.go_on(1)
    pair.stop(40, [1])
    assert [GIVEN_UP in why for _, why in pair.ends[0].failures] == [True]
    pair.send(1, 100)
    pair.go_on(6)
    assert ["gave this process up" in why for _, why in pair.ends[1].failures] == [True]
    assert not pair.ends[0].messages
    # And both can begin anew.
    ends = pair.ends
    again = ends[0].connect(ends[1]), ends[1].connect(ends[0])
    for end, peer in zip(ends, again):
        end.send(peer, b"again")
    pair.go_on(1)
    assert [end.messages for end in ends] == [[b"again"], [b"again"]]


def test_what_is_sent_again_by_a_stranger_reopens_nothing() -> None:
    """All packets of a flow that its receiver has forgotten, recorded on their way."""
    sender, receiver, clock = End("udp"), End("udp"), Clock(speed=1)
    receiver.transport = Transport.udp("", 0, clock, False)
    with Relay(port_of(receiver)) as relay:
        there = with_port(receiver.transport.address(), port_of(receiver), relay.port)
        peer = sender.transport.connect(there)
        back = receiver.connect(sender)
        sender.send(peer, b"once")
        poll_until([sender, receiver], lambda: relay.carry() and bool(receiver.messages))
    for _ in range(600):  # the sender is gone
        clock.advance(SECOND // 4)
        receiver.progress()
    assert [failed for failed, _ in receiver.failures] == [back]
    before = refused()
    with socket.socket(type=socket.SOCK_DGRAM) as stranger:
        stranger.bind(("127.0.0.1", 0))
        for packet in relay.carried * 3:
            stranger.sendto(packet, ("127.0.0.1", port_of(receiver)))
            receiver.progress()
        stranger.setblocking(False)
        answered = 0
        try:
            while True:
                answered += len(stranger.recv(65536))
        except BlockingIOError:
            pass
    assert receiver.messages == [b"once"]
    assert answered <= sum(map(len, relay.carried * 3)) and refused() > before


def test_a_process_that_is_stopped_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that is 100 times as fast makes minutes of a second."""
    with Process("udp-fast", "echo_soon") as other:
        end, pid = other.end, other.child.pid
        end.send(other.peer, b"before")
        poll_until([end], lambda: end.messages == [b"before"])
        os.kill(pid, signal.SIGSTOP)
        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
        for i in range(20):
            end.send(other.peer, patterned(100_000, i))
        until = time.monotonic() + 1.5
        while time.monotonic() < until:
            end.progress()
            end.transport.wait(2)
        os.kill(pid, signal.SIGCONT)
        poll_until([end], lambda: len(end.messages) == 21)
        assert end.messages[1:] == [patterned(100_000, i) for i in range(20)]
        assert not end.failures
