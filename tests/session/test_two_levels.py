"""Sums in two levels, inside hosts and then between them: when ranks make them, and what they say
if they do not. A letter stands for a host."""

from __future__ import annotations

import hashlib
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from _engine_tests import shared
from groups import Meeting, blocks_of, greetings, processes, settings, sum_of, until_failure
from test_statistics import new_process

from omnihvd.engine import EngineError, session

BLOCK = 256
SOON_S = 15


def refusal(monkeypatch: pytest.MonkeyPatch, hosts: str) -> str:
    """Why ranks on these hosts make no reduce-scatter of a megabyte; empty: they do."""
    said = greetings(monkeypatch, "OMNIHVD_HOST_ID", *hosts)
    ranks = session.Communicator(0, len(hosts))
    ranks.meet(lambda mine: said)
    return ranks.refusal(1 << 20, scatters=True)


@pytest.mark.parametrize(
    ("hosts", "env", "expected"),
    [
        ("aaa", {}, ""),
        ("abc", {}, ""),
        ("aab", {}, ""),
        ("aabb", {}, "levels"),
        ("abba", {}, "levels"),
        ("aabb", {"OMNIHVD_HIERARCHY": "off"}, ""),
        ("abcd", {"OMNIHVD_LEVELS": "2x2"}, "levels"),
        ("abcd", {"OMNIHVD_LEVELS": "4"}, ""),
        ("abcde", {"OMNIHVD_LEVELS": "2x2"}, "levels"),  # these do not fit: sums will say so
    ],
)
def test_ranks_reduce_scatter_on_one_level(
    hosts: str, env: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert refusal(monkeypatch, hosts) == expected


def test_where_runs_reproduce_no_sum_between_hosts_is_too_small(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Horovod fuses other tensors in each run: what is small in one is part of a sum in another."""
    monkeypatch.setenv("OMNIHVD_DETERMINISTIC", "1")
    said = greetings(monkeypatch, "OMNIHVD_HOST_ID", "a", "b")
    ranks = session.Communicator(0, 2)
    ranks.meet(lambda mine: said)
    assert ranks.refusal(1000) == "" and not ranks.leaves_first(1000)


SUMS_ALONE = """
import ctypes, types
from omnihvd.engine import session

numbers = (ctypes.c_float * 256)()
alone = types.SimpleNamespace(allgather=lambda mine: [mine])
for _ in range(2):
    ranks = session.Communicator(0, 1)
    ranks.meet(alone.allgather)
    ranks.sum(ctypes.addressof(numbers), 256, "float32", alone)
"""


def test_a_job_that_insists_on_two_levels_is_told_why_not() -> None:
    """Once, not for each communicator."""
    env = {"OMNIHVD_HIERARCHY": "on", "OMNIHVD_WAY": "stream", "OMNIHVD_MIN_BYTES": "1"}
    said = new_process(SUMS_ALONE, **env).stderr
    assert said.count(" without reducing inside the hosts first: they are all on one host") == 1


def obstacles(**values: Any) -> list[str]:
    """The answers to four ranks on two hosts as they begin."""
    meeting = Meeting(4)

    def begin(rank: int) -> str:
        try:
            made = settings(**values)
            return shared.two_levels_obstacle(made, rank, list("aabb"), meeting.allgather(rank))
        except EngineError as why:
            return f"failed: {why}"

    with ThreadPoolExecutor(4) as threads:
        return list(threads.map(begin, range(4)))


def test_all_ranks_hear_why_a_host_shares_no_memory() -> None:
    most = shared.chunk_bytes(2) // 64
    said = f"rank 0: on a: OMNIHVD_BLOCK_SIZE is larger than {most}"
    assert obstacles(block_size=most + 1) == [said] * 4


def test_all_ranks_hear_why_hosts_are_not_connected() -> None:
    said = obstacles(aggregators=["127.0.0.1:9"], secret="the secret of a test")
    assert len({*said}) == 1
    assert said[0].startswith("failed: rank 0: omnihvd cannot start on rank 0 (")
    assert "aggregator 127.0.0.1:9: Connection refused" in said[0]


def _sums(rank: int, size: int, group: Any, pipe: Any) -> None:
    for count in (1, 3 * BLOCK, 70_001):
        for density in (0, 0.05, 1):
            x = blocks_of(rank, count, density)
            group.allreduce(x)
            np.testing.assert_array_equal(x, sum_of(size, count, density))
    for sign in (rank % 2, rank // 2):  # inside a host, and between the hosts
        x = blocks_of(0, 70_001, 0.3) * np.float32(1 - 2 * sign)
        group.allreduce(x)
        np.testing.assert_array_equal(x, np.zeros(70_001))
    sent = []
    for blocks in (1, 4000):
        x = np.zeros(4000 * BLOCK, np.float32)
        x[: blocks * BLOCK] = 1
        before = session.stats()["bytes_sent"]
        group.allreduce(x)
        sent.append(session.stats()["bytes_sent"] - before)
    assert 100 * sent[0] < sent[1], "zero blocks were sent"
    # A single block is summed between the hosts by ranks 1 and 3.
    until_failure(lambda: group.allreduce(np.ones(BLOCK, np.float32)), pipe)


def test_sums_and_a_rank_that_dies() -> None:
    with processes(4, _sums, "hosts aabb") as ranks:
        ranks.serve("ready")
        ranks.processes[3].kill()
        assert "rank 3 (b) has ended" in ranks.expect(2, "sum failed", SOON_S)
        for rank in (1, 0):  # rank 0 has it from rank 1
            why = ranks.expect(rank, "sum failed", SOON_S)
            assert "among ranks 1, 3, counted from 0: " in why and "rank 1 (b)" in why


def _again(rank: int, size: int, group: Any, pipe: Any) -> None:
    digests = []
    for repeat in range(5):
        x = np.random.default_rng(rank).standard_normal(300_000).astype(np.float32)
        time.sleep(0.003 * ((rank + repeat) % 3))
        group.allreduce(x)
        digests.append(hashlib.sha256(x).hexdigest())
    pipe.send(("summed", digests))


def test_sums_in_rank_order_reproduce_bit_for_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """On three hosts: two numbers have one sum in any order."""
    monkeypatch.setenv("OMNIHVD_DETERMINISTIC", "1")
    with processes(6, _again, "hosts aabbcc") as ranks:
        assert len({digest for found in ranks.serve("summed") for digest in found}) == 1
