"""Groups that come and go leave nothing behind: no descriptors, no memory, no connections."""

from __future__ import annotations

import gc
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from groups import PATIENCE_S, Meeting, blocks_of, session, settings, sum_of
from test_dedicated import SECRET, addresses, servers

GROUPS = 120
SETTLED = 40  # groups, after which pools and caches have their size
COUNT = 200_000


def measure(process: psutil.Process) -> dict[str, float]:
    return {
        "descriptors": process.num_fds(),
        "mappings": Path(f"/proc/{process.pid}/maps").read_text().count("\n"),
        "megabytes": process.memory_info().rss / 1e6,
    }


def groups_come_and_go(size: int, watched: list[psutil.Process], **values: Any) -> None:
    """Makes GROUPS groups one after the other, each used once; none of the processes may grow."""
    meeting = Meeting(size)
    expected = sum_of(size, COUNT, 0.5)
    early: list[dict[str, float]] = []
    failures: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            engine = session.Engine(settings(timeout_s=PATIENCE_S / 2, **values))
            for number in range(GROUPS):
                group = engine.join(rank, size, meeting.allgather(rank))
                x = blocks_of(rank, COUNT, 0.5)
                group.allreduce(x, x)
                np.testing.assert_array_equal(x, expected)
                del group
                meeting.rounds.clear()
                if number == SETTLED and rank == 0:
                    early.extend(measure(process) for process in watched)
            engine.join(rank, size, meeting.allgather(rank))
            if rank == 0:
                gc.collect()
                late.extend(measure(process) for process in watched)
            meeting.allgather(rank)(b"")
        except BaseException as why:
            failures.append(why)
            meeting.abort()

    late: list[dict[str, float]] = []
    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert not failures, failures
    assert not any(thread.is_alive() for thread in threads), "a rank hangs"
    assert len(early) == len(late) == len(watched)
    for before, after in zip(early, late):
        assert after["descriptors"] <= before["descriptors"] + 5, (before, after)
        assert after["mappings"] <= before["mappings"] + 30, (before, after)
        assert after["megabytes"] <= before["megabytes"] + 12, (before, after)


@pytest.mark.parametrize("tls", ["tcp,self", "all"])
def test_of_ranks(tls: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCX_TLS", tls)
    groups_come_and_go(3, [psutil.Process(os.getpid())])


@pytest.mark.parametrize("tls", ["tcp,self", "all"])
def test_of_a_dedicated_aggregator(tls: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCX_TLS", tls)
    with servers(1) as started:
        watched = [psutil.Process(started[0].process.pid), psutil.Process(os.getpid())]
        values = {"aggregators": addresses(started), "secret": SECRET}
        groups_come_and_go(2, watched, **values)
