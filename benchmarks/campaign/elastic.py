"""Elastic jobs of horovodrun: ranks are killed, and Horovod starts others in their places.

This machine is three hosts to Horovod, with a rank each. A process has a number: its host's, and 3
more for each process that the host had before. Faults name hosts; the record names processes.
"""

from __future__ import annotations

import dataclasses
import random
import socket
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.campaign import place
from benchmarks.campaign.job import Record
from benchmarks.campaign.launched import Launched
from benchmarks.campaign.plan import ELASTIC, Fault, Job, make_sums, settings
from benchmarks.elastic_hosts import HOSTS, launcher

STEPS = 60  # sums; the job begins again with its list after the last
TOGETHER = 10  # after so many sums, ranks wait until all are back


@dataclass
class World:
    """The group that a process is in from then on."""

    when: float
    process: int
    rank: int
    size: int


@dataclass
class ElasticRecord(Record):
    worlds: list[World] = field(default_factory=list)
    done: set[int] = field(default_factory=set)  # processes that have made all sums


def plan_elastic(seed: int, isolated: bool) -> Job:
    """The seed's elastic job. The same seed plans the same job."""
    prng = random.Random(f"elastic {seed}")
    hosts = prng.choice(("aaa", "aab", "abc"))
    env = settings(prng, "communicator")
    sums = make_sums(prng, "horovodrun", env, False)
    job = Job(seed, ELASTIC, hosts, [(0, 1, 2)], [sums], env, [], False, replay=" --elastic")

    def add(kind: str, value: float = 0, delay: float = 0) -> None:
        host = -1 if kind in ("suspend", "link") else prng.randrange(3)
        job.faults.append(Fault(kind, host, prng.randrange(3 * STEPS), delay, value))

    for _ in range(prng.choice((0, 8, 16, 32))):
        add("stop", 10 ** prng.uniform(-3, 0.3), prng.uniform(0, 0.01))
    for _ in range(prng.choice((1, 2, 2, 3))):
        add("kill", delay=prng.uniform(0, 0.04))
    if prng.random() < 0.2:
        add("suspend", 10 ** prng.uniform(-2, 0))
    if prng.random() < 0.3:
        add("link", 10 ** prng.uniform(-2.5, -0.3))
    if env.get("OMNIHVD_TRANSPORT") == "udp":
        job.loss, job.late = prng.choice((0, 0.005, 0.05)), prng.choice((0, 0.01, 0.2))
    if prng.random() < 0.2:
        job.memory_bytes = prng.choice((1 << 16, 1 << 20, 8 << 20))  # the launcher needs some
        job.faults.append(Fault("small-shm", -1, 0, 0, job.memory_bytes))
    return job if isolated else job.without_namespaces()


class Elastic(Launched):
    record: ElasticRecord

    def __init__(self, job: Job, folder: Path, isolated: bool) -> None:
        super().__init__(job, folder, isolated)
        self.record = ElasticRecord(job)
        self.newest: dict[int, int] = {}  # host -> its last process
        self.killed_at = 0.0
        self.waiting.sort(key=lambda fault: fault.after)  # one kill at a time

    def start(self) -> None:
        if self.isolated:
            place.add_address(socket.gethostbyname(HOSTS[2]))
        super().start()

    def command(self) -> list[str]:
        return [*launcher(self.folder), sys.executable, "-m", "benchmarks.campaign.elastic_rank"]

    def accept(self) -> None:
        pipe = self.listener.accept()
        host, pid = pipe.recv()
        number = self.newest[host] + len(HOSTS) if host in self.newest else host
        self.newest[host] = number
        self.pids[number], self.pipes[0, number] = pid, pipe
        pipe.send((number, self.job))

    def hear(self, g: int, rank: int, said: Any) -> None:
        if said[0] == "world":
            self.record.worlds.append(World(said[1], rank, *said[2:]))
        else:
            self.record.done.add(rank)

    def is_whole(self) -> bool:
        """Whether each host's process lives, and has begun a sum since the last kill."""
        begun = {r.rank for r in self.record.results if r.begun > self.killed_at}
        whole = {number for number in self.newest.values() if self.lives(number)}
        return len(whole & begun) == len(HOSTS)

    def is_due(self, fault: Fault) -> bool:
        """Horovod itself may give up if a second rank ends while it starts again."""
        return super().is_due(fault) and (fault.kind != "kill" or self.is_whole())

    def schedule(self, fault: Fault) -> None:
        if fault.kind == "kill":
            self.killed_at = time.monotonic() + fault.delay_s
        super().schedule(fault)

    def inject(self, fault: Fault) -> None:
        """A host's fault is one of its last process."""
        if fault.rank >= 0:
            fault = dataclasses.replace(fault, rank=self.newest.get(fault.rank, fault.rank))
        super().inject(fault)

    def explain(self) -> None:
        """A log is of many groups: the oracle reads it as a whole."""

    def known(self, name: str) -> bool:
        return name in ("socket", "discover")
