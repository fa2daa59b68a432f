"""`python -m simulator --faults`: runs random jobs with fault injection until one goes wrong.

The engine's own code runs in one thread: processes form groups, sum, end and start again, and
allocations fail (simulator/csrc/bad_session.h). Their network loses, duplicates, delays and
reorders datagrams and is partitioned; machines pause or have clocks that jump. The seed determines
all of a job.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from collections import Counter
from collections.abc import Generator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from benchmarks.bench.source import source
from omnihvd.engine import EngineError
from simulator import _core

TOLD_S = 5.0  # between lines of progress
AT_ONCE = 50  # jobs between two looks at the clock
SUMMED = ("sums", "events", "messages")
# The counts that are faults.
FAULTS = (
    *("lost", "twice", "late", "cut", "crashes", "jumps", "pauses", "partly"),
    *("refused", "rare", "restarts"),
)


def run(
    first: int, jobs: int, seconds: float, to: Path | None, processes: int = 1, resume: bool = False
) -> dict[str, Any]:
    """Runs jobs with the seeds `first`, `first + 1`, ..., up to this number or time; at least one.

    Returns the counts, and `failed_seed` and `failure` of the first job that failed (else None).
    `to`: a file that gets the same as JSON, now and then. `processes`: how many share the seeds.
    `resume`: goes on where `to` ends, and adds to its counts.
    """
    outcome: dict[str, Any] = {"first_seed": first, "failed_seed": None, "failure": None}
    if resume and to and (saved := to.read_text()):
        outcome.update(json.loads(saved), failed_seed=None, failure=None)
    counts = Counter(outcome.get("counts", {}))
    before_s, done = outcome.get("took_s", 0.0), counts["jobs"]
    first, jobs = outcome["first_seed"] + done, jobs - done
    began = told = time.monotonic()
    with contextlib.closing(_parts(first, jobs, processes)) as parts:
        for part in parts:
            counts.update(part.pop("counts"))
            outcome["simulated_s"] = outcome.get("simulated_s", 0.0) + part.pop("simulated_s")
            outcome.update(part)
            now = time.monotonic()
            over = outcome["failure"] is not None or 0 < seconds <= now - began
            if over or counts["jobs"] == done + jobs or now - told >= TOLD_S:
                told = now
                outcome.update(counts=dict(counts), took_s=before_s + now - began)
                print(line(outcome), flush=True)
                if to:
                    to.write_text(json.dumps({**outcome, **source()}, indent=1) + "\n")
            if over:
                break
    return outcome


def _parts(first: int, jobs: int, processes: int) -> Generator[dict[str, Any], None, None]:
    """The results of run_seeds for all seeds, in their order."""
    endless = (
        range(begin, min(begin + AT_ONCE, first + jobs))
        for begin in itertools.count(first, AT_ONCE)
    )
    pieces = itertools.takewhile(len, endless)
    if processes == 1:
        yield from map(run_seeds, pieces)
        return
    with ProcessPoolExecutor(processes) as pool:
        try:
            # pool.map takes all at once, and there is no end of them.
            while batch := list(itertools.islice(pieces, 16 * processes)):
                yield from pool.map(run_seeds, batch)
        except BrokenProcessPool:
            raise EngineError(
                "a process that ran jobs has ended; --processes 1 says at which seed"
            ) from None
        finally:
            pool.shutdown(cancel_futures=True)


def run_seed(seed: int) -> dict[str, Any]:
    """Runs a job: even seeds have long sums. Raises EngineError, which says what went wrong."""
    return _core.run_bad_session(seed, long_sums=seed % 2 == 0)


def run_seeds(seeds: range) -> dict[str, Any]:
    """Runs jobs until one fails; returns the part of run()'s result for them."""
    counts: Counter[str] = Counter()
    part: dict[str, Any] = {"counts": counts, "simulated_s": 0.0}
    for seed in seeds:
        counts["jobs"] += 1
        try:
            one = run_seed(seed)
        except EngineError as why:
            part.update(failed_seed=seed, failure=str(why))
            break
        counts.update(one.pop("counts"))
        counts.update({name: one[name] for name in SUMMED})
        part["simulated_s"] += one["seconds"]
        part["last_job"] = one["job"]
    return part


def line(outcome: dict[str, Any]) -> str:
    counts = outcome["counts"]
    faults = sum(counts.get(name, 0) for name in FAULTS)
    return (
        f"{counts['jobs']} jobs, {counts.get('sums', 0)} sums right, "
        f"{counts.get('failed', 0)} that failed as they had to, "
        f"{faults} faults, {counts.get('events', 0)} events, {outcome['took_s']:.1f} s"
    )
