"""Elastic jobs of the campaign (benchmarks/campaign/elastic.py): their oracle, and their kills."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.campaign import place
from benchmarks.campaign.elastic import Elastic, ElasticRecord, World, plan_elastic
from benchmarks.campaign.elastic_oracle import judge_elastic
from benchmarks.campaign.job import Result
from benchmarks.campaign.plan import Fault

ROOT = Path(__file__).parents[2]
JOB = plan_elastic(0, False)
KILL = (2.0, Fault("kill", 1, 0, 0))  # of the first process of host 1
# Before the kill process 1 is rank 2. Process 4 takes its place.
WORLDS = [World(0.0, 0, 0, 3), World(0.0, 1, 2, 3), World(0.0, 2, 1, 3)]
WORLDS += [World(5.0, 0, 0, 3), World(5.0, 4, 2, 3), World(5.0, 2, 1, 3)]
LOST = "[omnihvd error vm rank 0] an allreduce failed: rank 0 lost the connection to rank {}"


def record(
    *results: Result,
    faults: tuple[tuple[float, Fault], ...] = (KILL,),
    done: tuple[int, ...] = (0, 2, 4),
    status: int = 0,
    log: str = "",
    over: float = 9.0,
    hangs: str = "",
) -> ElasticRecord:
    job = ElasticRecord(JOB, [*results], [*faults], {-1: status}, logs={0: log}, worlds=WORLDS)
    job.done, job.over, job.hangs = {*done}, over, hangs
    return job


def of(verdict: str, begun: float, seconds: float = 0.5) -> Result:
    return Result(0, 0, 7, verdict, "text", begun, seconds)


@pytest.mark.parametrize(
    ("job", "said"),
    [
        (record(of("right", 1.0), of("failed", 1.8), of("right", 6.0)), ""),
        (record(of("failed", 1.45)), ""),  # the kill was noted just after it was sent
        (record(of("failed", 1.0)), "failed without a fault"),
        (record(of("failed", 6.0)), "failed without a fault"),  # in the group after the kill
        (record(of("failed", 1.8, 20.0)), "failed only 19.8 s after a fault"),
        (record(of("wrong", 1.0)), "process 0, sum 7: wrong"),
        (record(done=()), "no process has made all sums"),
        (record(done=(0, 2)), "process 4: says nothing of its last sums"),
        (record(status=256), "the launcher ended with status 256"),
        (record(over=99.0), ""),  # the job goes on after a kill
        (record(hangs="the job rank 0"), "the job rank 0: does not end"),
        (record(log=LOST.format(2)), ""),
        (record(log=LOST.format(1)), "process 0 names nobody: an allreduce failed: "),
        (record(log="[omnihvd error vm rank 0] gloo: Connection reset by peer"), ""),
    ],
)
def test_the_oracle_of_elastic_jobs(job: ElasticRecord, said: str) -> None:
    found = judge_elastic(job)
    assert bool(found) == bool(said) and said in "\n".join(found), found


def test_a_rank_is_killed_only_when_the_job_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, killed = Elastic(JOB, tmp_path, False), []
    monkeypatch.setattr(running, "at", lambda _, action: action())
    monkeypatch.setattr(running, "signal", lambda rank, _: killed.append(rank))
    monkeypatch.setattr(running, "lives", lambda rank: rank not in killed)
    running.waiting = [Fault("kill", 1, 0, 0), Fault("kill", 1, 2, 0)]
    running.newest = {0: 0, 1: 1, 2: 2}

    def result(*ranks: int, begun: float) -> None:
        running.record.results += [Result(0, rank, 0, "right", "", begun, 0) for rank in ranks]
        running.trigger()

    result(0, 1, begun=1.0)
    assert not killed  # rank 2 has not begun
    result(2, begun=1.0)
    assert killed == [1]
    result(0, 2, begun=running.killed_at + 1)
    assert killed == [1]  # the host's next process is not there
    running.newest[1] = 4
    result(0, 2, begun=running.killed_at + 2)
    assert killed == [1]
    result(4, begun=running.killed_at + 2)
    assert killed == [1, 4] and not running.waiting


REORDER = """
import socket
from benchmarks.campaign import place
place.isolate(1 << 20, 0, 0.05)
a, b = socket.socket(type=socket.SOCK_DGRAM), socket.socket(type=socket.SOCK_DGRAM)
a.bind(("127.0.0.1", 0))
numbers = []
for first in range(0, 2000, 20):
    a.settimeout(1e-4 if first < 1980 else 1)  # so that late frames come among the next ones
    for number in range(first, first + 20):
        b.sendto(number.to_bytes(4, "big") + bytes(1400), a.getsockname())
    try:
        while True:
            numbers.append(int.from_bytes(a.recv(2000)[:4], "big"))
    except TimeoutError:
        pass
print(sum(later < earlier for earlier, later in zip(numbers, numbers[1:])), *place.late_frames())
"""


@pytest.mark.skipif(bool(place.refused()), reason="needs root, iptables and tc")
def test_frames_are_overtaken() -> None:
    done = subprocess.run(
        [sys.executable, "-c", REORDER],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    overtaken, late, lost = map(int, done.stdout.split())
    assert 0 < overtaken <= late and late + lost < 400
