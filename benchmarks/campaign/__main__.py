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
import multiprocessing
import os
import pickle
import signal
import sys
import time
import traceback
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from benchmarks.bench.source import source
from benchmarks.campaign import place
from benchmarks.campaign.job import LIMIT_S, Record, run_job
from benchmarks.campaign.oracle import judge
from benchmarks.campaign.plan import FATAL, plan

Counts = collections.Counter[str]
PLANTED = ("wrong", "hang", "mute", "segment", "process")


def in_process(seed: int, isolated: bool, planted: str, limit_s: float) -> tuple[Any, int]:
    """A pipe from a new process, in which the job runs, and the process."""
    ours, theirs = multiprocessing.Pipe(duplex=False)
    pid = os.fork()
    if pid:
        theirs.close()
        return ours, pid
    status = 1
    try:
        ours.close()
        os.setpgid(0, 0)
        job = plan(seed, isolated)
        job.planted = planted
        theirs.send_bytes(pickle.dumps(run_job(job, isolated, limit_s)))
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def take(pipe: Any, pid: int, seed: int) -> tuple[Record | None, list[str]]:
    """The record of a job, and what is wrong."""
    try:
        record: Record | None = pickle.loads(pipe.recv_bytes())
    except EOFError:
        record = None
    pipe.close()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    if record is None:
        return None, [f"seed {seed}: the campaign itself failed; see above"]
    return record, judge(record)


def count(counts: Counts, record: Record) -> None:
    counts["jobs"] += 1
    counts[f"jobs of {record.job.backend}"] += 1
    counts["ranks"] += record.job.size
    for r in record.results:
        counts[{"right": "sums right", "failed": "sums failed"}.get(r.verdict, r.verdict)] += 1
    counts["groups formed again"] += bool(record.again)
    counts["frames lost"] += record.lost_frames
    counts["jobs with lost frames"] += record.lost_frames > 0
    for _, fault in record.faults:
        counts[f"fault {fault.kind}"] += 1


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
    lines.append(f"replay: python -m benchmarks.campaign --seeds {record.job.seed}")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
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
    parser.add_argument("--show", action="store_true", help="each job and its results")
    given = parser.parse_args(arguments)
    faulthandler.enable()
    importlib.import_module("omnihvd.engine")  # once, before all forks

    isolated = place.can_isolate()
    before: dict[str, Any] = {}
    if given.json and given.json.exists():
        before = json.loads(given.json.read_text())
    seed = max(given.first_seed, before.get("next_seed", 0))
    counts: Counts = collections.Counter(before.get("counts", {}))
    failures: list[str] = list(before.get("failures", []))
    slowest = float(before.get("longest_wait_s", 0))
    code = source()  # as it is now: somebody may commit meanwhile
    begun, failed, started = time.monotonic(), 0, 0
    seconds = 3600 * given.hours if given.hours else given.seconds
    most = given.jobs if given.jobs is not None else sys.maxsize
    seeds = iter(given.seeds or itertools.count(seed))
    if given.seeds:
        most = len(given.seeds)
    running: dict[Any, tuple[int, int, float]] = {}
    while True:
        late = most == sys.maxsize and time.monotonic() - begun > seconds
        more = not late and started < most and (not failed or given.go_on)
        while more and len(running) < given.processes and started < most:
            seed = next(seeds)
            if plan(seed, isolated).backend == "torch" and "torch" not in sys.modules:
                importlib.import_module("omnihvd.torch")
            pipe, pid = in_process(seed, isolated, given.plant, given.limit)
            running[pipe] = (pid, seed, time.monotonic() + given.limit + 30)
            started += 1
        if not running:
            break
        for pid, own_seed, end in running.values():
            if time.monotonic() > end:  # take() then says that there is no record
                print(f"seed {own_seed}: the job does not end", flush=True)
                os.killpg(pid, signal.SIGKILL)
        for pipe in wait(list(running), 5):
            pid, own_seed, _ = running.pop(pipe)
            record, wrong = take(pipe, pid, own_seed)
            if record:
                count(counts, record)
                slowest = max(slowest, longest(record))
                if given.show and not wrong:
                    print(record.job.describe(), f"{record.seconds:.2f} s")
                    for r in record.results:
                        print("   ", r)
            if wrong:
                failed += 1
                failures.append(f"seed {own_seed}: {wrong[0]}")
                print(show(record, wrong) if record else wrong[0], flush=True)
    took = time.monotonic() - begun
    print(", ".join(f"{name} {number}" for name, number in sorted(counts.items())))
    print(f"{started} jobs in {took:.1f} s; longest wait for an error {slowest:.1f} s")
    print(f"{failed} jobs failed")
    if given.json:
        given.json.write_text(
            json.dumps(
                {
                    **code,
                    "next_seed": seed + 1,
                    "counts": dict(sorted(counts.items())),
                    "longest_wait_s": slowest,
                    "took_s": before.get("took_s", 0) + took,
                    "failures": failures,
                    "isolated": isolated,
                },
                indent=1,
            )
            + "\n"
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
