"""Judges a job: every sum right on all ranks, or failed on all within its bound, by a name."""

from __future__ import annotations

import os
import re
import signal

from benchmarks.campaign.job import Record, Result
from benchmarks.campaign.plan import FATAL, OWN, TIMEOUT_S

SOON_S = 15.0  # loaded machines are slow; without detection it would be for ever
NO_ANSWER_S = 15.0  # kAggregator: the silence of an in-network aggregator
CONNECT_S = 30.0
AT_ONCE_S = 3.0  # a group that has failed fails again
# Errors of the original library, where it made the sum: they name nobody.
LIBRARY = re.compile(
    r"library: |gloo|Horovod has been shut down|Connection (closed|reset)|Broken pipe|store", re.I
)
# omnihvd's own, with a system's reason in the library's words.
LOST = re.compile(r"\brank \d+ (\([^)]*\) )?lost the connection to ")
# How a fault may end its rank, as os.waitpid() says it. All other ends are crashes.
AN_EXCEPTION = 1 << 8
ENDS: dict[str, set[int]] = {
    "kill": {signal.SIGKILL},
    "exit": {signal.SIGTERM},
    "files": {AN_EXCEPTION},
    "memory": {AN_EXCEPTION, signal.SIGTERM, signal.SIGABRT},
}
# A rank may end so, too, if its log says that no memory is left: its stack
# finds no room, UCX uses what it did not get, or the loader cannot bind a function.
STARVED = re.compile(r"Out of memory|Cannot allocate|bad_alloc|MemoryError|(\[omnihvd warnin){2}")
STARVED_ENDS = {signal.SIGSEGV, signal.SIGBUS, 127 << 8}
# An in-network aggregator does not know which rank has stopped after all have begun.
LATE = re.compile(
    r"did not end within .* \(OMNIHVD_TIMEOUT\); "
    r"(waiting for rank |all ranks have begun it: .* the aggregator at )"
)


def judge(record: Record) -> list[str]:
    """All that is wrong; empty: the job is as it has to be."""
    return [
        *_hangs(record),
        *_ends(record),
        *(wrong for result in record.results for wrong in _result(record, result)),
        *_missing(record),
        *([f"the aggregator {record.aggregator_end}"] if record.aggregator_end else []),
        *left_behind(record),
    ]


def victims(record: Record) -> set[int]:
    """Ranks that a fault may end or fail."""
    return {f.rank for _, f in record.faults if f.kind in OWN}


def fatal(record: Record, group: tuple[int, ...]) -> list[float]:
    """When faults came after which sums of these ranks may fail."""
    return [
        when for when, f in record.faults if f.kind in FATAL and (f.rank in group or f.rank < 0)
    ]


def does_not_end(record: Record) -> list[str]:
    return [f"{record.hangs}: does not end; its stacks are below"] if record.hangs else []


def left_behind(record: Record) -> list[str]:
    return [f"left behind: {', '.join(record.left)}"] if record.left else []


def _hangs(record: Record) -> list[str]:
    if hung := does_not_end(record):
        return hung
    times = fatal(record, tuple(range(record.job.size))) if record.over else []
    if times and record.over - times[0] > 2 * SOON_S:
        return [f"the launcher ends only {record.over - times[0]:.1f} s after a fault"]
    return []


def _ends(record: Record) -> list[str]:
    """Only a victim may end by a signal, or with another status than 0: as its faults end it."""
    wrong = []
    for rank, status in sorted(record.ends.items()):
        if not status or (record.hangs and f"rank {rank}" in record.hangs):
            continue
        if rank < 0:  # the launcher
            fine = bool(fatal(record, tuple(range(record.job.size))))
            wrong += [] if fine else [f"the launcher ended with status {status}"]
            continue
        how = f"status {status}"
        if os.WIFSIGNALED(status):
            status = os.WTERMSIG(status)  # without the bit of a core dump
            how = f"signal {signal.Signals(status).name}"
        faults = {f.kind for _, f in record.faults if f.rank == rank}
        ends = set[int]().union(*(ENDS.get(kind, ()) for kind in faults))
        if "memory" in faults and STARVED.search(record.logs.get(rank, "")):
            ends |= STARVED_ENDS
        if status not in ends:
            wrong.append(f"rank {rank} ended by {how}")
    return wrong


def _members(record: Record, result: Result) -> tuple[int, ...]:
    again = result.number >= 999
    return tuple(record.again) if again else record.job.groups[result.group]


def _result(record: Record, r: Result) -> list[str]:
    where = f"group {r.group}, rank {r.rank}, sum {r.number}: "
    if r.verdict == "right":
        return []
    if r.verdict in ("wrong", "right after a failure"):
        return [f"{where}{r.verdict} {r.text}"]
    members, again = _members(record, r), r.number >= 999
    own = victims(record) & set(members)
    if r.verdict == "failed again":
        late = r.seconds > AT_ONCE_S and r.rank not in own and not by_library(r.text)
        return [f"{where}fails again only after {r.seconds:.1f} s: {r.text}"] if late else []
    times = fatal(record, members)
    if "OMNIHVD_TIMEOUT" in record.job.env and LATE.search(r.text):
        times = times or [r.begun]  # a loaded machine makes any rank late
    # A rank may be killed when it has said that it goes on.
    kinds = ("files", "memory", "kill", "exit")
    lasting = {f.rank for _, f in record.faults if f.kind in kinds} & own
    if not times or (again and not lasting):
        return [f"{where}failed without a fault: {r.text}"]
    wrong = []
    seconds = r.begun + r.seconds - max(r.begun, min(times))
    stopped = any(f.kind == "stop-long" for _, f in record.faults)
    bound = SOON_S + TIMEOUT_S if stopped else SOON_S
    if "connectFullMesh" in r.text:  # Gloo's own connecting, to a rank that has ended
        bound += CONNECT_S
    if any(f.kind == "aggregator" for _, f in record.faults):
        bound += NO_ANSWER_S
    if seconds > bound and r.rank not in own:
        wrong.append(f"{where}failed only {seconds:.1f} s after a fault: {r.text}")
    if r.rank not in own and not _names_culprit(record, members, r.text):
        wrong.append(f"{where}names nobody: {r.text}")
    return wrong


def by_library(text: str) -> bool:
    return bool(LIBRARY.search(text)) and not LOST.search(text)


def _names_culprit(record: Record, members: tuple[int, ...], text: str) -> bool:
    if by_library(text) or LATE.search(text):
        return True
    names = [rf"\brank {members.index(v)}\b" for v in victims(record) if v in members]
    if part := re.search(r"among ranks ([\d, ]+), counted from 0: ", text):
        inner = [members[int(rank)] for rank in part[1].split(", ")]
        names = [rf"\brank {inner.index(v)}\b" for v in victims(record) if v in inner]
        text = text[part.end() :]
    if any(f.kind == "aggregator" for _, f in record.faults):
        names.append(re.escape(record.aggregator))
        names.append("aggregator")
    if any(f.kind == "full" for _, f in record.faults):
        names.append("/dev/shm|shared memory")
    return any(re.search(name, text) for name in names)


def _missing(record: Record) -> list[str]:
    """A rank that lives has said of each sum what came of it, or that the group failed."""
    if record.hangs or (record.over and fatal(record, tuple(range(record.job.size)))):
        return []  # a launcher ends all ranks after a fault
    wrong = []
    own = victims(record)
    for g, members in enumerate(record.job.groups):
        for rank in set(members) - own:
            of_rank = [r for r in record.results if (r.group, r.rank) == (g, rank)]
            made = sum(r.verdict == "right" and r.number < 999 for r in of_rank)
            if made < len(record.job.sums[g]) and not any(r.verdict == "failed" for r in of_rank):
                wrong.append(f"group {g}, rank {rank}: says nothing of some sums")
    return wrong
