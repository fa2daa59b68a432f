"""`omnihvd simulate --faults`: random jobs over a bad network, until one goes wrong.

The engine's own workers, aggregators, wire format and loss recovery, in one thread, over a network
that loses, repeats, delays and reorders datagrams, is cut in two, and whose hosts stop or have
clocks that jump (csrc/simulation/bad_job.h). All of a job follows from its seed.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

from omnihvd import engine
from omnihvd.engine import EngineError

TOLD_S = 5.0  # between lines of progress


def run(first: int, jobs: int, seconds: float, to: Path | None) -> dict[str, Any]:
    """Jobs of the seeds `first`, `first + 1`, ..., as many as that, or for as long; at least one.

    Returns what there was, and of the first that failed `failed_seed` and `failure`, else None.
    `to`: the same as JSON, now and then.
    """
    counts: Counter[str] = Counter()
    began = told = time.monotonic()
    outcome: dict[str, Any] = {"first_seed": first, "failed_seed": None, "failure": None}
    while True:
        seed = first + counts["jobs"]
        counts["jobs"] += 1
        try:
            one = engine.simulation.run_bad_job(seed)
        except EngineError as why:
            outcome.update(failed_seed=seed, failure=str(why))
        else:
            counts.update(one.pop("counts"))
            counts.update({k: one[k] for k in ("sums", "unfinished", "events", "messages")})
            outcome["simulated_s"] = outcome.get("simulated_s", 0.0) + one["seconds"]
            outcome["last_job"] = one["job"]
        now = time.monotonic()
        over = outcome["failure"] or counts["jobs"] >= jobs or (seconds and now - began >= seconds)
        if over or now - told >= TOLD_S:
            told = now
            outcome.update(counts=dict(counts), took_s=now - began)
            print(line(outcome), flush=True)
            if to:
                to.write_text(json.dumps(outcome, indent=1) + "\n")
        if over:
            return outcome


def line(outcome: dict[str, Any]) -> str:
    counts = outcome["counts"]
    faults = sum(counts.get(n, 0) for n in ("lost", "twice", "late", "cut", "crashes", "jumps"))
    return (
        f"{counts['jobs']} jobs, {counts.get('sums', 0)} sums right, "
        f"{counts.get('unfinished', 0)} that a stopped host or a cut network held up, "
        f"{faults} faults, {counts.get('events', 0)} events, {outcome['took_s']:.1f} s"
    )
