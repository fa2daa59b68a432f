"""Judges an elastic job: every sum is right or fails for a rank that was killed, and the job ends
well."""

from __future__ import annotations

import re

from benchmarks.campaign.elastic import ElasticRecord, World
from benchmarks.campaign.job import Result
from benchmarks.campaign.launched import LAUNCHER
from benchmarks.campaign.oracle import SOON_S, by_library, does_not_end, left_behind

NOTED_S = 0.1  # a kill is noted when it has been sent


def judge_elastic(record: ElasticRecord) -> list[str]:
    """All that is wrong; empty: the job is as it has to be."""
    status = record.ends.get(LAUNCHER)
    return [
        *does_not_end(record),
        *([f"the launcher ended with status {status}"] if status else []),
        *(wrong for result in record.results for wrong in _result(record, result)),
        *_unnamed(record),
        *_unfinished(record),
        *left_behind(record),
    ]


def _kills(record: ElasticRecord) -> list[tuple[float, int]]:
    return [(when, fault.rank) for when, fault in record.faults if fault.kind == "kill"]


def _world(record: ElasticRecord, process: int, when: float) -> World | None:
    """The group that the process was in then."""
    own = [w for w in record.worlds if w.process == process and w.when <= when]
    return max(own, key=lambda world: world.when, default=None)


def _result(record: ElasticRecord, r: Result) -> list[str]:
    if r.verdict == "right":
        return []
    where = f"process {r.rank}, sum {r.number}: "
    if r.verdict == "wrong":
        return [f"{where}wrong {r.text}"]
    world = _world(record, r.rank, r.begun)
    since, end = world.when if world else 0.0, r.begun + r.seconds
    kills = [when for when, _ in _kills(record) if since <= when <= end + NOTED_S]
    if not kills:
        return [f"{where}failed without a fault: {r.text}"]
    waited = end - max(r.begun, min(kills))
    late = [f"{where}failed only {waited:.1f} s after a fault: {r.text}"]
    return late if waited > SOON_S else []


def _unnamed(record: ElasticRecord) -> list[str]:
    """Horovod's errors name nobody: omnihvd's lines before them do, by the rank in that group."""
    killed = [_world(record, victim, when) for when, victim in _kills(record)]
    name = "|".join(sorted({rf"\brank {world.rank}\b" for world in killed if world})) or "nobody"
    lines = [(p, line) for p, log in record.logs.items() for line in log.splitlines()]
    said = [(p, line.partition("] ")[2]) for p, line in lines if line.startswith("[omnihvd error")]
    own = [(p, text) for p, text in said if not by_library(text) and not re.search(name, text)]
    return [f"process {p} names nobody: {text}" for p, text in own]


def _unfinished(record: ElasticRecord) -> list[str]:
    """Each process that was in the last group, and not killed, has made all sums."""
    if record.hangs:
        return []
    killed = {process for _, process in _kills(record)}
    late = {w.process for w in record.worlds} - killed - record.done
    if not record.done:
        return ["no process has made all sums"]
    return [f"process {process}: says nothing of its last sums" for process in sorted(late)]
