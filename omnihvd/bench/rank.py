"""Each rank's part of `omnihvd bench -- LAUNCHER`: sums in turn, verified, then timed.

argv[1]: JSON in base64, since launchers quote in their own ways. It has `backend` (of sums.py),
`env` (set before MPI or Gloo begins), `points` ([bytes, density] each) and `seconds` (of a point).
Rank 0 prints one line for each point: MARK and JSON.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import time
from typing import Any

import numpy as np

from omnihvd.bench.patterns import Point, is_total, part
from omnihvd.bench.sums import BACKENDS

MARK = "omnihvd-bench:"
WARM_UP = 15  # sums, in which algorithms are tried
LEAST, MOST = 5, 200  # timed sums


def packed(plan: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(plan).encode()).decode()


def unpacked(word: str) -> dict[str, Any]:
    return dict(json.loads(base64.urlsafe_b64decode(word)))


def place_of(backend: Any) -> tuple[int, int]:
    """This rank, and how many there are."""
    if hasattr(backend, "hvd"):
        return backend.hvd.rank(), backend.hvd.size()
    return backend.dist.get_rank(), backend.dist.get_world_size()


def slowest(backend: Any, seconds: list[float]) -> list[float]:
    """The slowest rank's time of each sum. Collective."""
    times = backend.torch.tensor([seconds], dtype=backend.torch.float64)
    if hasattr(backend, "hvd"):
        times = backend.hvd.allgather(times, name="times").max(dim=0).values
    else:
        backend.dist.all_reduce(times, op=backend.dist.ReduceOp.MAX)
    return list(times.flatten().tolist())


def measure(backend: Any, point: Point, seconds: float) -> dict[str, Any]:
    """Times of single sums, of the slowest rank."""
    rank, size = place_of(backend)
    backend.prepare(part(point, rank, size), point)

    def sums(number: int) -> list[float]:
        times = []
        for _ in range(number):
            backend.restore()
            begin = time.perf_counter()
            backend.reduce()
            times.append(time.perf_counter() - begin)
        return slowest(backend, times)

    sums(1)
    if not is_total(backend.result(), point, size):
        raise SystemExit(f"rank {rank}: a wrong sum of {point.count} float32")
    one = float(np.median(sums(WARM_UP)))  # the same on all ranks
    times = sums(runs(seconds, one))
    # Few figures: launchers break lines that are long.
    figures = {"median": float(np.median(times)), "least": min(times), "most": max(times)}
    return {"count": point.count, "density": point.density, "runs": len(times), **figures}


def runs(seconds: float, one: float) -> int:
    return int(min(max(seconds / one, LEAST), MOST))


def main() -> None:
    plan = unpacked(sys.argv[1])
    os.environ.update(plan["env"])
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    backend = BACKENDS[plan["backend"]]()
    rank, size = place_of(backend)
    for whole, density in plan["points"]:
        found = measure(backend, Point(whole // 4, density, memory="new"), plan["seconds"])
        if rank == 0:
            # In one write: launchers put a rank's name before each.
            sys.stdout.write(f"{MARK} {json.dumps({**found, 'ranks': size})}\n")
            sys.stdout.flush()
    backend.close()


if __name__ == "__main__":
    main()
