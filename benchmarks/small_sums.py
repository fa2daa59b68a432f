"""Times small sums on one host, beside Gloo's: medians of single calls, in microseconds.

    python benchmarks/small_sums.py [--ranks 2 4] [--rounds 5] [--seconds 0.5]

engine   one call of the engine from C++, without a framework
omnihvd  dist.all_reduce of a float32 tensor, with omnihvd
gloo     the same without omnihvd

Each job is a torchrun of its own, and the jobs take turns. A call's time is the slowest rank's.
Writes results/small_sums.json; benchmarks/README.md has its table.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "build" / "tests")]
RESULT = Path(__file__).parent / "results" / "small_sums.json"
SIZES = (1 << 10, 8 << 10, 64 << 10, 256 << 10)
KINDS = ("engine", "omnihvd", "gloo")
MARK = "small-sums:"
LEAST = 20  # calls at each size


def single_calls(kind: str, size: int, seconds: float, dist: Any) -> list[float]:
    """The slowest rank's seconds of each call."""
    import torch

    tensor = torch.zeros(size // 4)

    def call() -> float:
        begun = time.perf_counter()
        dist.all_reduce(tensor)
        return time.perf_counter() - begun

    times: Callable[[int], list[float]] = lambda calls: [call() for _ in range(calls)]  # noqa: E731
    if kind == "engine":
        times = engine_sums(dist, size // 4)
    times(LEAST)
    return for_seconds(dist, times, seconds)


def for_seconds(dist: Any, times: Callable[[int], list[float]], seconds: float) -> list[float]:
    """The slowest rank's seconds of as many calls as take so long. times: makes so many calls."""
    guess = slowest(dist, [statistics.median(times(LEAST))])[0]
    return slowest(dist, times(max(LEAST, int(seconds / guess))))


def engine_sums(dist: Any, count: int) -> Callable[[int], list[float]]:
    from _engine_tests import shared

    from omnihvd.engine import session

    def allgather(text: bytes) -> list[bytes]:
        found: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(found, text)
        return found

    rank, size = dist.get_rank(), dist.get_world_size()
    group = shared.SmallSum(session.settings_from_environment(), rank, size, allgather)
    return lambda calls: list(group.times(count, calls))


def slowest(dist: Any, seconds: list[float]) -> list[float]:
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, seconds)
    return [max(of_all) for of_all in zip(*found)]


def rank_of(kind: str, seconds: float) -> None:
    if kind == "omnihvd":
        import omnihvd  # noqa: F401
    import torch.distributed as dist

    dist.init_process_group("gloo")
    for size in SIZES:
        times = single_calls(kind, size, seconds, dist)
        if dist.get_rank() == 0:
            print(MARK, json.dumps([size, 1e6 * statistics.median(times), len(times)]), flush=True)
    dist.destroy_process_group()


def job(
    words: Sequence[object], ranks: int, sizes: int, before: Sequence[str] = ()
) -> dict[int, float]:
    """The medians by size that rank 0 of a torchrun says. words: the script and its arguments;
    sizes: how many it says; before: of the command."""
    command = [*before, sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", *map(str, (ranks, *words))]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "OMNIHVD_LOG": "error"}
    done = subprocess.run(command, env=env, text=True, capture_output=True, timeout=300)
    lines = [json.loads(line.split(MARK)[1]) for line in done.stdout.splitlines() if MARK in line]
    if done.returncode or len(lines) != sizes:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return {size: median for size, median, _ in lines}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5, help="at each size")
    parser.add_argument("--kind", choices=KINDS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.kind:
        rank_of(args.kind, args.seconds)
        return
    from benchmarks.bench.command import machine

    facts = {**machine(), "load": os.getloadavg()[0], "command": " ".join(sys.argv)}
    results = []
    for ranks in args.ranks:
        rounds = [
            {
                k: job((__file__, "--kind", k, "--seconds", args.seconds), ranks, len(SIZES))
                for k in KINDS
            }
            for _ in range(args.rounds)
        ]
        for size in SIZES:
            of_kinds = {kind: [one[kind][size] for one in rounds] for kind in KINDS}
            results.append({"ranks": ranks, "bytes": size, "us": of_kinds})
            print(ranks, size, {k: round(statistics.median(v), 1) for k, v in of_kinds.items()})
    RESULT.write_text(json.dumps({"configuration": facts, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
