"""Random jobs in real processes under faults: python -m benchmarks.campaign --seconds 60

A job that fails prints its seed, all that happened, and the command that replays it.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import faulthandler
import importlib
import itertools
import json
import math
import multiprocessing
import os
import pickle
import signal
import sys
import time
import traceback
from collections.abc import Iterable, Iterator
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.bench.source import source
from benchmarks.campaign import place
from benchmarks.campaign.elastic import ElasticRecord, plan_elastic
from benchmarks.campaign.elastic_oracle import judge_elastic
from benchmarks.campaign.job import LIMIT_S, Record, run_job
from benchmarks.campaign.launched import plan_launched
from benchmarks.campaign.oracle import judge
from benchmarks.campaign.plan import FATAL, Job, plan

PLANTED = ("wrong", "hang", "mute", "segment", "process")


class Started(NamedTuple):
    """A job in a process of its own."""

    pid: int
    seed: int
    end: float  # by time.monotonic(): when it is killed


def start(job: Job, isolated: bool, limit_s: float) -> tuple[Any, Started]:
    """A pipe from a new process, in which the job runs, and the process."""
    ours, theirs = multiprocessing.Pipe(duplex=False)
    pid = os.fork()
    if pid:
        theirs.close()
        return ours, Started(pid, job.seed, time.monotonic() + limit_s + 30)
    status = 1
    try:
        ours.close()
        os.setpgid(0, 0)  # a terminal's Ctrl-C does not reach it any more
        place.end_with_parent(signal.SIGKILL)
        theirs.send_bytes(pickle.dumps(run_job(job, isolated, limit_s)))
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def take(pipe: Any, running: Started) -> tuple[Record | None, list[str]]:
    """The record of a job, and what is wrong."""
    try:
        record: Record | None = pickle.loads(pipe.recv_bytes())
    except EOFError:
        record = None
    pipe.close()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(running.pid, signal.SIGKILL)
    os.waitpid(running.pid, 0)
    if record is None:
        return None, [f"seed {running.seed}: the campaign itself failed; see above"]
    return record, judge_elastic(record) if isinstance(record, ElasticRecord) else judge(record)


class Totals:
    """The counts of all jobs, also of earlier campaigns with the same file."""

    def __init__(self, file: Path | None) -> None:
        self.file = file
        before = json.loads(file.read_text()) if file and file.exists() else {}
        self.counts = collections.Counter(before.get("counts", {}))
        self.failures = list(before.get("failures", []))
        self.longest_s = float(before.get("longest_wait_s", 0))
        self.took_s = float(before.get("took_s", 0))
        self.next_seed = int(before.get("next_seed", 0))

    def add(self, record: Record) -> None:
        counts = self.counts
        counts["jobs"] += 1
        counts[f"jobs of {record.job.backend}"] += 1
        counts["ranks"] += record.job.size
        for r in record.results:
            counts[{"right": "sums right", "failed": "sums failed"}.get(r.verdict, r.verdict)] += 1
        counts["groups formed again"] += bool(record.again)
        counts["frames lost"] += record.lost_frames
        counts["jobs with lost frames"] += record.lost_frames > 0
        counts["frames late"] += record.late_frames
        for _, fault in record.faults:
            counts[f"fault {fault.kind}"] += 1
        self.longest_s = max(self.longest_s, longest(record))

    def save(self, code: dict[str, Any], isolated: bool) -> None:
        if self.file is None:
            return
        saved = {
            **code,
            "next_seed": self.next_seed,
            "counts": dict(sorted(self.counts.items())),
            "longest_wait_s": self.longest_s,
            "took_s": self.took_s,
            "failures": self.failures,
            "isolated": isolated,
        }
        part = self.file.with_name(self.file.name + ".part")  # an interrupt leaves the old one
        part.write_text(json.dumps(saved, indent=1) + "\n")
        part.replace(self.file)


def longest(record: Record) -> float:
    """How long a survivor waited, after a fault, for its error."""
    times = [when for when, f in record.faults if f.kind in FATAL and f.kind != "stop-long"]
    return max(
        (
            r.begun + r.seconds - max(r.begun, min(times))
            for r in record.results
            if r.verdict == "failed" and times
        ),
        default=0.0,
    )


def show(record: Record, wrong: list[str]) -> str:
    begun = min((r.begun for r in record.results), default=0)
    lines = [f"FAILED {record.job.describe()}", *(f"  {line}" for line in wrong)]
    for when, fault in record.faults:
        lines.append(f"  {when - begun:8.3f} s: {fault}")
    lines += [f"  rank {rank} ended: {status}" for rank, status in sorted(record.ends.items())]
    for rank, log in sorted(record.logs.items()):
        if log:
            lines.append(f"--- rank {rank} wrote:\n{log}")
    lines.append(
        f"replay: python -m benchmarks.campaign --seeds {record.job.seed}{record.job.replay}"
    )
    return "\n".join(lines)


def parsed(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="campaign", description=__doc__)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, nargs="+", help="these jobs, and no others")
    parser.add_argument("--jobs", type=int, help="how many; default: as the time allows")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--hours", type=float, help="instead of --seconds")
    parser.add_argument("--processes", type=int, default=2, help="jobs beside each other")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds of one job")
    parser.add_argument("--json", type=Path, help="adds the counts to this file, and goes on there")
    parser.add_argument("--plant", choices=PLANTED, default="", help="a mistake, to be found")
    parser.add_argument("--go-on", action="store_true", help="after a failure")
    parser.add_argument("--launchers", action="store_true", help="jobs of horovodrun and mpirun")
    parser.add_argument("--elastic", action="store_true", help="elastic jobs of horovodrun")
    parser.add_argument("--show", action="store_true", help="each job and its results")
    return parser.parse_args(words)


def planned(given: argparse.Namespace, first: int, isolated: bool) -> Iterator[Job]:
    """The jobs to start, as long as there is time."""
    plans = plan_launched if given.launchers else plan_elastic if given.elastic else plan
    seeds: Iterable[int] = given.seeds or itertools.count(first)
    end = math.inf
    if not given.seeds and given.jobs is not None:
        seeds = itertools.islice(seeds, given.jobs)
    elif not given.seeds:
        end = time.monotonic() + (3600 * given.hours if given.hours else given.seconds)
    for seed in seeds:
        if time.monotonic() > end:
            return
        job = plans(seed, isolated)
        job.planted = given.plant
        if job.backend == "torch":
            importlib.import_module("omnihvd.torch")  # once, before its ranks are forked
        yield job


def main(arguments: list[str] | None = None) -> int:
    given = parsed(arguments)
    faulthandler.enable()
    importlib.import_module("omnihvd.engine")  # once, before all forks
    refused, code = place.refused(), source()  # as it is: somebody may commit meanwhile
    isolated = not refused
    if refused:
        print(f"jobs have no full memory and no bad links: `{refused}` fails here")
    totals = Totals(given.json)
    jobs = planned(given, max(given.first_seed, totals.next_seed), isolated)
    begun, earlier, failed, started = time.monotonic(), totals.took_s, 0, 0
    running: dict[Any, Started] = {}
    while True:
        room = given.processes - len(running) if given.go_on or not failed else 0
        for job in itertools.islice(jobs, room):
            pipe, process = start(job, isolated, given.limit)
            running[pipe] = process
            totals.next_seed = max(totals.next_seed, job.seed + 1)  # a replay moves nothing back
            started += 1
        if not running:
            break
        for process in running.values():
            if time.monotonic() > process.end:  # take() then says that there is no record
                print(f"seed {process.seed}: the job does not end", flush=True)
                os.killpg(process.pid, signal.SIGKILL)
        for pipe in wait(list(running), 5):
            process = running.pop(pipe)
            record, wrong = take(pipe, process)
            if record:
                totals.add(record)
                if given.show and not wrong:
                    print(record.job.describe(), f"{record.seconds:.2f} s")
                    for r in record.results:
                        print("   ", r)
            if wrong:
                failed += 1
                totals.failures.append(f"seed {process.seed}: {wrong[0]}")
                print(show(record, wrong) if record else wrong[0], flush=True)
            totals.took_s = earlier + time.monotonic() - begun
            totals.save(code, isolated)  # now, since somebody may interrupt hours of jobs
    print(", ".join(f"{name} {number}" for name, number in sorted(totals.counts.items())))
    took = time.monotonic() - begun
    print(f"{started} jobs in {took:.1f} s; longest wait for an error {totals.longest_s:.1f} s")
    print(f"{failed} jobs failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
