"""wait() sleeps, and wakes for messages, wake() and failures."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from ends import End, Process, poll_until


def timed(work: Callable[[], object]) -> float:
    start = time.monotonic()
    work()
    return time.monotonic() - start


def quiet(kind: str) -> tuple[End, End, int]:
    """Two ends that are connected and have nothing left to do."""
    a, b = End(kind), End(kind)
    peer = a.connect(b)
    a.send(peer, b"x")
    poll_until([a, b], lambda: bool(b.messages) and bool(a.sent))
    for _ in range(3):
        while a.progress() or b.progress():
            pass
        time.sleep(0.05)
        for end in (a, b):  # which may be woken while the connection is completed
            end.transport.wait(0)
    b.messages.clear()
    return a, b, peer


def test_wake_from_another_thread(kind: str) -> None:
    a = End(kind)
    timer = threading.Timer(0.3, a.transport.wake)
    timer.start()
    seconds = timed(lambda: a.transport.wait(10_000))
    timer.join()
    assert 0.2 < seconds < 5


def test_wake_before_wait_is_not_lost_and_counts_once(kind: str) -> None:
    a, _b, _ = quiet(kind)
    for _ in range(3):
        a.transport.wake()
    assert timed(lambda: a.transport.wait(10_000)) < 5
    assert any(timed(lambda: a.transport.wait(300)) > 0.2 for _ in range(2))


def test_time_out(kind: str) -> None:
    a, _b, _ = quiet(kind)
    # UCX has events of its own now and then (it looks after its connections every 2 s).
    assert any(0.2 < timed(lambda: a.transport.wait(300)) < 5 for _ in range(2))
    assert timed(lambda: a.transport.wait(0)) < 0.2


def test_message_ends_wait(kind: str) -> None:
    a, b, peer = quiet(kind)

    def later() -> None:
        time.sleep(0.3)
        a.send(peer, b"wake up")
        poll_until([a], lambda: len(a.sent) == 2)

    sender = threading.Thread(target=later)
    sender.start()
    seconds = timed(lambda: b.wait_until(lambda: bool(b.messages)))
    sender.join()
    assert b.messages == [b"wake up"]
    assert seconds < 5


def test_idle_costs_nothing(kind: str) -> None:
    _a, b, _ = quiet(kind)
    wall = time.monotonic()
    cpu = time.process_time()
    waits = 0
    while time.monotonic() - wall < 2:
        if not b.progress():
            b.transport.wait(1000)
            waits += 1
    assert time.process_time() - cpu < 0.05
    assert waits < 20


def test_process_that_only_waits_notices_a_kill(process_kind: str) -> None:
    with Process(process_kind, "sink") as other:
        end = other.end
        end.wait_until(lambda: bool(end.messages))
        while end.progress():
            pass
        threading.Timer(0.5, other.child.kill).start()
        start = time.monotonic()
        while not end.failures:
            assert time.monotonic() - start < 10
            if not end.progress():
                end.transport.wait(-1)
        assert time.monotonic() - start < 3.5
