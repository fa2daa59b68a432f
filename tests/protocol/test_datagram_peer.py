"""Whether a peer is still there: two processes ask each other, and either may be stopped."""

from __future__ import annotations

import pytest
from _engine_tests.datagrams import Peer
from hypothesis import given
from hypothesis import strategies as st

SECOND = 1_000_000
STEP = SECOND // 4
GIVEN_UP = ("refused", "never answered", "silent")


class Process:
    """Asks the other one, and answers what has come when it is awake."""

    def __init__(self, now: int) -> None:
        self.peer = Peer(now)
        self.inbox: list[str] = []
        self.end = ""

    def wake(self, now: int, other: Process) -> None:
        came, self.inbox = self.inbox, []
        for what in came:
            if what == "answer":
                self.peer.heard(now)
            else:
                other.inbox.append("answer")
        said = self.peer.look(now, False)
        if said in GIVEN_UP:
            self.end = self.end or said
        elif said:
            other.inbox.append(said)


class Two:
    def __init__(self) -> None:
        self.now = 1000 * SECOND
        self.both = [Process(self.now), Process(self.now)]
        for process in self.both:
            process.peer.opened(self.now)

    def go_on(self, us: int, stopped: tuple[int, ...] = ()) -> None:
        until = self.now + us
        while self.now < until:
            self.now += STEP if len(stopped) < 2 else us
            for i, process in enumerate(self.both):
                if i not in stopped:
                    process.wake(self.now, self.both[1 - i])


stops = st.integers(0, 400 * 24 * 3600 * SECOND)
short = st.integers(0, 25 * SECOND)


@given(
    events=st.lists(
        st.one_of(
            st.tuples(st.just((0, 1)), stops),
            st.tuples(st.sampled_from([(0,), (1,)]), short),
            st.tuples(st.just(()), st.integers(SECOND, 40 * SECOND)),
        ),
        max_size=12,
    )
)
def test_nobody_is_given_up_who_answers_when_both_are_awake(
    events: list[tuple[tuple[int, ...], int]],
) -> None:
    two = Two()
    for stopped, us in events:
        two.go_on(us, stopped)
        if len(stopped) == 1:  # what it was asked meanwhile, it answers now
            two.go_on(2 * SECOND)
    assert [process.end for process in two.both] == ["", ""]


@given(before=stops, begin=st.integers(0, 35 * SECOND))
def test_who_never_answers_is_given_up_whatever_happened_before(before: int, begin: int) -> None:
    two = Two()
    two.go_on(begin)
    two.go_on(before, (0, 1))
    two.go_on(27 * SECOND, (1,))
    assert not two.both[0].end
    two.go_on(6 * SECOND, (1,))
    assert two.both[0].end == "silent"


@pytest.mark.parametrize("lives", [False, True])
def test_who_is_silent_is_asked_whether_the_flow_is_known(lives: bool) -> None:
    peer = Peer(0)
    said = [peer.look(i * SECOND, lives) for i in range(14)]
    assert set(said) == {"open"}
    peer.opened(14 * SECOND)
    peer.heard(14 * SECOND)
    said = [peer.look((15 + i) * SECOND, lives) for i in range(4)]
    assert said == ["probe", "probe", "both", "both"]


def test_an_opening_is_not_given_up_for_a_stop() -> None:
    peer = Peer(0)
    for second in range(14):
        assert peer.look(second * SECOND, False) == "open"
    later = 3600 * SECOND
    assert [peer.look(later + i * SECOND, False) for i in range(5)] == ["open"] * 5
    assert peer.look(later + 5 * SECOND, False) == "never answered"


def test_a_refusal_is_no_silence() -> None:
    """A stop ends none of what the peer's host has said."""
    peer = Peer(0)
    peer.opened(0)
    for i in range(3):
        peer.refused(i * 40_000)
    assert peer.look(90_000, True) != "refused"
    assert peer.look(110_000, True) == "refused"
