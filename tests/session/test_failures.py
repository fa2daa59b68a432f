"""Survivors see an error that names the culprit, soon; never a hang, never a wrong sum."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
import threading
import time
from pathlib import Path
from typing import Any

import _engine_tests
import numpy as np
import pytest
from groups import (
    OnHosts,
    allgather_over,
    blocks_of,
    in_threads,
    leaves,
    processes,
    small_for_ever,
    sum_for_ever,
    until_failure,
)

from omnihvd.engine import EngineError

SOON_S = 15  # loaded machines are slow; without detection it would be for ever


@pytest.mark.parametrize(
    "victim, transport",
    [(0, "ucx"), (2, "ucx"), (1, "udp")]
    + [(rank, how) for how in ("shared", "small", "direct") for rank in (0, 1)],
)
def test_a_killed_rank_is_named_by_all_survivors(victim: int, transport: str) -> None:
    work = small_for_ever if transport in ("small", "direct") else sum_for_ever
    with processes(3, work, transport) as ranks:
        ranks.gather()
        for rank in range(3):
            ranks.expect(rank, "ready")
        time.sleep(0.5)  # in the midst of an allreduce: there is always one
        ranks.processes[victim].kill()
        for rank in {0, 1, 2} - {victim}:
            assert f"rank {victim} (" in ranks.expect(rank, "sum failed", SOON_S)


def _files_of(pid: int) -> set[str]:
    """The files in /dev/shm that ranks share and this process has open."""
    found = set()
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            found.add(str(path.readlink()))
    return {path for path in found if path.startswith("/dev/shm/omnihvd-")}


def test_the_ranks_remove_the_file_of_a_rank_that_is_killed_while_they_join() -> None:
    with processes(3, sum_for_ever, "shared") as ranks:
        files: set[str] = set()
        while not files:  # one round after the other, until rank 0 has made the file
            ranks.gather(1)
            assert ranks.pipes[0].poll(SOON_S)
            files = _files_of(ranks.processes[0].pid)
        assert all(Path(file).exists() for file in files)
        for file in files:  # docs/trust.md
            assert Path(file).stat().st_mode & 0o777 == 0o600
            assert re.fullmatch("/dev/shm/omnihvd-[0-9a-f]{24}", file)
        ranks.processes[0].kill()
        for rank in (1, 2):
            ranks.expect(rank, "gather")
            ranks.pipes[rank].send("no list: the exchange fails")
            ranks.expect(rank, "failed")
        assert not any(Path(file).exists() for file in files)


@pytest.mark.parametrize("ranks", [3, 5])
def test_a_lost_connection_between_two_that_live_fails_all(ranks: int) -> None:
    after = threading.Barrier(ranks, timeout=SOON_S)

    def work(rank: int, group: Any) -> str:
        x = np.ones(60_000, np.float32)
        group.allreduce(x, x)
        if after.wait() == 0:
            _engine_tests.session.lose_in_memory_transports(1)
        while True:
            group.allreduce(x, x)

    said = {str(why) for why in in_threads(ranks, work, timeout_s=SOON_S)}
    assert len(said) == 1, said
    lost = r"rank (\d) \(.*\) lost the connection to rank (\d) \(.*\): as the test wanted"
    found = re.fullmatch(lost, said.pop())
    assert found and found[1] != found[2]


def _one_rank_stays_away(rank: int, size: int, group: Any, pipe: Any) -> None:
    if rank == 1:
        time.sleep(4)
    x = blocks_of(rank, 60_000, 1)
    start = time.monotonic()
    try:
        group.allreduce(x, x)
    except EngineError as why:
        pipe.send(("late", (str(why), time.monotonic() - start)))


@pytest.mark.parametrize(
    ("transport", "said"),
    [
        ("ucx", "did not end within 1 s (OMNIHVD_TIMEOUT)"),
        ("shared", "did not end within 1 s (OMNIHVD_TIMEOUT); waiting for rank 1 ("),
        ("small", "did not end within 1 s (OMNIHVD_TIMEOUT); waiting for rank 1 ("),
        ("direct", "did not end within 1 s (OMNIHVD_TIMEOUT); waiting for rank 1 ("),
    ],
)
def test_timeout_fails_all_ranks_and_names_the_missing_one(transport: str, said: str) -> None:
    with processes(3, _one_rank_stays_away, transport, timeout_s=1.0) as ranks:
        ranks.gather()
        for rank in (0, 2):
            why, seconds = ranks.expect(rank, "late")
            assert said in why and "rank 1 (" in why
            assert seconds < SOON_S
        ranks.expect(1, "late")  # finds the group failed


@pytest.mark.parametrize("transport", ["memory", "shared", "small", "direct"])
def test_a_stall_is_reported_and_then_ends_well(
    transport: str, capfd: pytest.CaptureFixture[str]
) -> None:
    def work(rank: int, group: Any) -> None:
        x = np.ones(60_000, np.float32)
        group.allreduce(x, x)
        if rank == 1:
            time.sleep(3)
        group.allreduce(x, x)
        np.testing.assert_array_equal(x, np.full(60_000, 4))

    assert in_threads(2, work, transport, stall_warning_s=1.0) == [None, None]
    said = capfd.readouterr().err
    assert "has made no progress for 1 s" in said and "waiting for rank 1 (" in said
    assert transport == "memory" or "no progress for 1 s; waiting for rank 1 (" in said


@pytest.mark.parametrize(
    ("transport", "said"),
    [
        ("memory", "the ranks disagree about allreduce number 1: rank "),
        ("shared", "the ranks disagree about an allreduce: rank "),
        ("direct", "the ranks disagree about an allreduce: rank "),
    ],
)
def test_ranks_that_disagree_fail_with_both_sides_named(transport: str, said: str) -> None:
    def work(rank: int, group: Any) -> None:
        x = np.ones(1000 + rank, np.float32)
        group.allreduce(x, x)

    for result in in_threads(2, work, transport):
        assert isinstance(result, EngineError)
        assert said in str(result)
        assert "1000 float32" in str(result) and "1001 float32" in str(result)


@pytest.mark.parametrize(
    ("transport", "said"),
    [
        ("memory", ") has left the job"),
        ("shared", ") left the job while the others wait for its part of a sum"),
        ("small", ") left the job while the others wait for its part of a sum"),
        ("direct", ") left the job while the others wait for its part of a sum"),
    ],
)
def test_a_rank_that_leaves_is_not_waited_for(transport: str, said: str) -> None:
    results = in_threads(2, leaves(1), transport)
    assert results[1] is None
    assert isinstance(results[0], EngineError) and "rank 1 (" in str(results[0])
    assert said in str(results[0])


def test_a_rank_that_cannot_start_is_named_on_all_ranks() -> None:
    def work(rank: int, group: Any) -> None:
        raise AssertionError("there should be no group")

    results = in_threads(
        2, work, aggregators=["127.0.0.1:9"], secret="a secret of the job", transport="memory"
    )
    for result in results:
        assert isinstance(result, EngineError)
        assert "rank 0 (" in str(result) and "127.0.0.1:9: " in str(result)
        assert "is `omnihvd aggregator` running there, and reachable?" in str(result)


def _stopped(rank: int, size: int, group: Any, pipe: Any) -> None:
    pipe.send(("ready", None))
    for _ in range(50):
        x = blocks_of(rank, 1_000_000, 0.5)
        group.allreduce(x, x)


def test_a_rank_that_is_stopped_and_goes_on_harms_nothing() -> None:
    with processes(2, _stopped) as ranks:
        ranks.gather()
        for rank in range(2):
            ranks.expect(rank, "ready")
        time.sleep(0.2)
        pid = ranks.processes[1].pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        time.sleep(2)
        os.kill(pid, signal.SIGCONT)
        for rank in range(2):
            ranks.expect(rank, "done")


def _meets_again(rank: int, size: int, group: Any, pipe: Any) -> None:
    """After the loss of rank 2, ranks 0 and 1 make another group, but have no descriptors left. A
    rank that saw the loss, and was not only told of it, makes new threads."""
    x = blocks_of(rank, 500_000, 1)
    group.allreduce(x)
    until_failure(lambda: group.allreduce(x), pipe)
    used = len(list(Path("/proc/self/fd").iterdir()))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used, used))

    try:
        OnHosts(rank, "ab", allgather_over(pipe)).allreduce(x)
    except EngineError as why:
        pipe.send(("none", str(why)))


def test_a_rank_that_cannot_begin_again_is_named_by_the_others() -> None:
    with processes(3, _meets_again, "hosts abc") as ranks:
        ranks.serve("ready")
        ranks.processes[2].kill()
        for rank in (0, 1):
            assert "rank 2 (" in ranks.expect(rank, "sum failed", SOON_S)
        del ranks.pipes[2]
        for said in ranks.serve("none"):
            assert re.match(r"omnihvd cannot start on rank [01]: .* descriptors are left", said)
