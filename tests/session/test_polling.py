"""When a progress thread without work polls, and when it sleeps."""

from __future__ import annotations

from _engine_tests import session

LIMIT = 5  # microseconds


def polls(polling: session.Polling, start: int, pauses: int, pause_us: int) -> int:
    """Polls in these pauses, with work after each, by a thread that looks each microsecond."""
    count, now = 0, start
    for _ in range(pauses):
        polling.on_work(now)
        for us in range(1, pause_us):
            if polling.may_sleep(now + us):
                break
            count += 1
        now += pause_us
    return count


def test_a_thread_polls_for_a_moment_and_then_sleeps() -> None:
    polling = session.Polling(LIMIT)
    polling.on_work(1000)
    assert not polling.may_sleep(1000 + LIMIT - 1)
    assert polling.may_sleep(1000 + LIMIT)
    assert session.Polling(0).may_sleep(1000)


def test_it_polls_as_long_as_that_finds_work() -> None:
    polling = session.Polling(LIMIT)
    assert polls(polling, 0, 1000, LIMIT - 1) == 1000 * (LIMIT - 2)


def test_it_hardly_polls_where_work_comes_late() -> None:
    polling = session.Polling(LIMIT)
    polls(polling, 0, 100, 100)
    assert polls(polling, 10_000, 3200, 100) == 100 * (LIMIT - 1), "one pause of 32"


def test_it_polls_again_once_that_finds_work() -> None:
    polling = session.Polling(LIMIT)
    polls(polling, 0, 1000, 100)
    polls(polling, 100_000, 5 * 32, LIMIT - 1)
    assert polls(polling, 200_000, 100, LIMIT - 1) == 100 * (LIMIT - 2)
