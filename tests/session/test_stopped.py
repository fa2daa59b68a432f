"""Processes that are stopped hold up nobody but those who sum with them, and these no longer than
their time-out."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from groups import Processes, all_well, blocks_of, in_threads, processes, sum_of
from test_dedicated import SECRET, addresses, servers

from omnihvd.engine import EngineError

COUNT = 300_000
MUCH = {"slots": 256}  # under way: more than the kernel or shared memory holds


def _reduce_much_for_ever(rank: int, size: int, group: Any, pipe: Any) -> None:
    x = np.ones(6_000_000, np.float32)
    pipe.send(("ready", None))
    try:
        while True:
            group.allreduce(x, x)
    except EngineError as why:
        pipe.send(("failed allreduce", str(why)))


def stop(ranks: Processes, which: Iterable[int]) -> None:
    for rank in which:
        pid = ranks.processes[rank].pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)


def longest_sum(rank: int, group: Any, seconds: float) -> float:
    """The longest within about so many seconds; the ranks agree on when to end."""
    longest = 0.0
    end = time.monotonic() + seconds
    expected = sum_of(2, COUNT, 0.3)
    goes_on = np.ones(1)
    while goes_on[0]:
        start = time.monotonic()
        x = blocks_of(rank, COUNT, 0.3)
        group.allreduce(x, x)
        np.testing.assert_array_equal(x, expected)
        longest = max(longest, time.monotonic() - start)
        goes_on[0] = time.monotonic() < end
        group.allreduce(goes_on, goes_on)
    return longest


def test_another_job_on_the_same_aggregator_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCX_TLS", "tcp,self")
    with servers(1) as started:
        values = {"aggregators": addresses(started), "secret": SECRET}
        with processes(4, _reduce_much_for_ever, **values, **MUCH) as stuck:
            stuck.gather()
            for rank in range(4):
                stuck.expect(rank, "ready")
            time.sleep(0.5)
            stop(stuck, [1, 2, 3])
            stuck.processes[0].kill()  # so that the aggregator gives this group up
            times = all_well(in_threads(2, lambda r, g: longest_sum(r, g, 4), "ucx", **values))
            for process in stuck.processes:
                process.kill()
        assert max(times) < 2, times


def test_a_time_out_is_reported_in_time() -> None:
    with processes(4, _reduce_much_for_ever, timeout_s=2.0, **MUCH) as ranks:
        ranks.gather()
        for rank in range(4):
            ranks.expect(rank, "ready")
        time.sleep(0.5)
        stop(ranks, [2, 3])
        start = time.monotonic()
        for rank in (0, 1):
            assert "OMNIHVD_TIMEOUT" in ranks.expect(rank, "failed allreduce", 30)
        assert time.monotonic() - start < 15  # else it is for ever
        for process in ranks.processes[2:]:
            process.kill()


def _sum_once(rank: int, size: int, group: Any, pipe: Any) -> None:
    x = np.full(COUNT, rank + 1, np.float32)
    if rank == 1:
        pipe.send(("late", None))
        pipe.recv()
    try:
        group.allreduce(x, x)
    except EngineError as why:
        pipe.send(("failed", str(why)))
    pipe.send(("summed", x))


@pytest.mark.parametrize("transport", ["ucx", "udp", "shared"])
def test_a_job_that_is_stopped_as_a_whole_does_not_wait_meanwhile(
    transport: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Neither OMNIHVD_TIMEOUT nor OMNIHVD_STALL_WARNING counts the time."""
    values = {"timeout_s": 3.0, "stall_warning_s": 2.5}
    with processes(2, _sum_once, transport=transport, **values) as ranks:
        ranks.gather()
        ranks.expect(1, "late")
        time.sleep(0.5)  # rank 0 waits
        stop(ranks, [0, 1])
        time.sleep(4)
        for process in ranks.processes:
            assert process.pid is not None
            os.kill(process.pid, signal.SIGCONT)
        time.sleep(1)
        ranks.pipes[1].send(None)
        for rank in range(2):
            np.testing.assert_array_equal(ranks.expect(rank, "summed"), np.full(COUNT, 3))
    assert "no progress" not in capfd.readouterr().err
