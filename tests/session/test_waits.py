"""A sum that takes too long: each rank names the one that it waits for."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from typing import Any

import numpy as np
import pytest
from groups import all_well, in_threads, processes
from test_dedicated import SECRET, addresses, servers

from omnihvd.engine import EngineError


def named(text: str) -> set[str]:
    """The ranks and aggregators in a message."""
    return set(re.findall(r"((?:rank|aggregator) \d+) \(", text))


def failures(size: int, late: int, count: int = 100_000, **values: Any) -> list[str]:
    """The ranks' errors when one of them does not begin a sum, with a time-out of 1 s."""

    failed = threading.Barrier(size, timeout=30)

    def work(rank: int, group: Any) -> None:
        x = np.ones(count, np.float32)
        if rank == late:
            failed.wait()
            group.allreduce(x, x)
        try:
            group.allreduce(x, x)
        finally:
            failed.wait()

    results = in_threads(size, work, timeout_s=1.0, **values)
    for result in results:
        assert isinstance(result, EngineError), results
    return [str(result) for result in results]


@pytest.mark.parametrize("late", [0, 1, 3])
def test_in_rank_order_those_who_wait_for_their_turn_are_not_named(late: int) -> None:
    for text in failures(4, late, deterministic=True):
        assert "OMNIHVD_TIMEOUT" in text and named(text) == {f"rank {late}"}


@pytest.mark.parametrize("late", [0, 2])
def test_those_who_aggregate_nothing_learn_the_name_too(late: int) -> None:
    for text in failures(3, late, count=10):  # a single block, and so a single aggregator
        assert named(text) == {f"rank {late}"}


def test_a_rank_that_has_not_begun_says_so_of_itself() -> None:
    for text in failures(3, 1):
        assert re.search(r"waiting for rank 1 \(\S+\), which has not begun it", text), text


@pytest.mark.parametrize("late", [0, 2])
def test_dedicated_aggregators_name_the_late_rank(late: int) -> None:
    with servers(2) as started:
        values = {"aggregators": addresses(started), "secret": SECRET, "transport": "ucx"}
        for text in failures(3, late, **values):
            assert "OMNIHVD_TIMEOUT" in text and named(text) == {f"rank {late}"}


def _reduce_until_failure(rank: int, size: int, group: Any, pipe: Any) -> None:
    x = np.ones(1_000_000, np.float32)
    group.allreduce(x, x)
    pipe.send(("ready", None))
    pipe.recv()
    try:
        while True:
            group.allreduce(x, x)
    except EngineError as why:
        pipe.send(("told", str(why)))


def test_a_stopped_aggregator_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    # Stopped between two sums: in the midst of a message in shared memory it would hold up those
    # of the other aggregator, too (docs/failure.md).
    with servers(2) as started:
        values = {
            "aggregators": addresses(started),
            "secret": SECRET,
            "timeout_s": 2.0,
            "stall_warning_s": 1.0,
        }
        with processes(2, _reduce_until_failure, **values) as ranks:
            ranks.gather()
            for rank in range(2):
                ranks.expect(rank, "ready")
            started[1].process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, started[1].process.pid, os.WSTOPPED | os.WNOWAIT)
            ranks.go_on()
            for rank in range(2):
                text = ranks.expect(rank, "told", 20)
                assert named(text) == {"aggregator 1"} and started[1].address in text
            started[1].process.send_signal(signal.SIGCONT)
    warnings = re.findall(".* has made no progress for 1 s.*", capfd.readouterr().err)
    assert warnings and all(named(line) == {"aggregator 1"} for line in warnings)


def test_an_aggregator_that_is_ended_in_the_midst_is_named() -> None:
    with servers(2) as started:
        values = {"aggregators": addresses(started), "secret": SECRET}
        with processes(2, _reduce_until_failure, **values) as ranks:
            ranks.gather()
            for rank in range(2):
                ranks.expect(rank, "ready")
            ranks.go_on()
            started[0].process.send_signal(signal.SIGTERM)  # it takes leave, as a rank does
            for rank in range(2):
                assert named(ranks.expect(rank, "told", 20)) == {"aggregator 0"}


def test_a_late_rank_is_warned_of_itself_and_by_the_others(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def work(rank: int, group: Any) -> None:
        if rank == 1:
            time.sleep(3)
        x = np.ones(100_000, np.float32)
        group.allreduce(x, x)
        np.testing.assert_array_equal(x, np.full(100_000, 3))

    assert in_threads(3, work, stall_warning_s=1.0) == [None] * 3
    lines = re.findall(".* has made no progress .*", capfd.readouterr().err)
    assert len(lines) >= 3 and all(named(line) == {"rank 1"} for line in lines), lines
    assert sum("which has not begun it" in line for line in lines) >= 1


ITSELF, OF_A_GROUP = ", which has not begun it", " sums for a group of ranks: stopped, out of"


def test_a_late_rank_is_warned_of_through_levels(capfd: pytest.CaptureFixture[str]) -> None:
    """Another group knows only who sums for the late rank's. The late rank, which sums several
    shares, says once that it has not begun."""
    limit, said, before = 0.4, "", 0.0

    def work(rank: int, group: Any) -> None:
        nonlocal said, before
        until = time.monotonic() + 20
        while rank == 3 and time.monotonic() < until:
            if ITSELF not in said:
                before = time.monotonic()
            elif OF_A_GROUP in said:
                break
            said += capfd.readouterr().err
            time.sleep(0.01)
        x = np.ones(400_000, np.float32)
        group.allreduce(x, x)

    all_well(in_threads(4, work, levels="2x2", streams=1, stall_warning_s=limit))
    may_repeat = (time.monotonic() - before) // limit
    said += capfd.readouterr().err
    assert OF_A_GROUP in said and 1 <= said.count(ITSELF) <= 1 + may_repeat
