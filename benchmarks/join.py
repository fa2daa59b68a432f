"""The cost of bootstrap: engines in processes of their own, on one machine, join and then sum.

    python benchmarks/join.py [--ranks 8 16 32 64 128 256]

For each number of ranks, with automatic levels and on one level, it measures seconds until all have
joined, and seconds of the first sum, which makes connections, and of the second. It also measures
processor seconds and private memory (MB) of these in a process, and its most connections.
Introductions go through this process, in place of a launcher's allgather; processor seconds are the
ranks' own. Then it measures one process that receives the introductions of 4,096 ranks. Writes
results/join.json.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import statistics
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import psutil

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from benchmarks.bench.command import machine  # noqa: E402
from omnihvd.engine import session  # noqa: E402

RESULT = Path(__file__).parent / "results" / "join.json"
COUNT = 1_000_000  # floats of a sum
HEARD = (64, 512, 4096)  # numbers of ranks, for one process that hears all introductions
MOST_ON_ONE_LEVEL = 128  # one machine has too few ports for 256 ranks
PATIENCE_S = 240
BETWEEN_HOSTS = {"UCX_TLS": "tcp"}  # not the memory that ranks of one machine share


def used() -> tuple[float, float]:
    """Processor seconds and private MB of this process."""
    of = resource.getrusage(resource.RUSAGE_SELF)
    return of.ru_utime + of.ru_stime, psutil.Process().memory_full_info().uss / 1e6


def join(rank: int, size: int, levels: str, parent: Connection) -> None:
    """A rank: sends its parent its introductions for the others, and finally its measurements."""

    def allgather(mine: bytes) -> list[bytes]:
        parent.send(mine)
        return parent.recv()

    settings = session.Settings()
    settings.levels = levels
    settings.timeout_s = settings.join_timeout_s = PATIENCE_S
    tensor = np.full(COUNT, rank, np.float32)
    seconds, before = [], used()
    allgather(b"")  # all are ready
    begun = time.monotonic()
    group = session.Engine(settings).join(rank, size, allgather)
    seconds.append(time.monotonic() - begun)
    joined = used()
    for _ in range(2):
        allgather(b"")
        begun = time.monotonic()
        group.allreduce(tensor, out := np.empty_like(tensor))
        seconds.append(time.monotonic() - begun)
        assert (out == size * (size - 1) // 2).all()
    after = used()
    peers = sum(c.status == "ESTABLISHED" for c in psutil.Process().net_connections("tcp"))
    parent.send((seconds, before, joined, after, peers))
    parent.recv()  # until all have summed


def measured(size: int, levels: str) -> dict[str, Any]:
    spawn = multiprocessing.get_context("spawn")
    pairs = [spawn.Pipe() for _ in range(size)]
    ranks = [
        spawn.Process(target=join, args=(rank, size, levels, theirs), daemon=True)
        for rank, (_, theirs) in enumerate(pairs)
    ]
    for process in ranks:
        process.start()
    for _, theirs in pairs:
        theirs.close()
    pipes = [ours for ours, _ in pairs]
    try:
        while isinstance((said := [hear(pipe) for pipe in pipes])[0], bytes):
            for pipe in pipes:
                pipe.send(said)
        for pipe in pipes:
            pipe.send(None)
    finally:
        for process in ranks:
            process.join(10)
            process.kill()
    return summary(size, levels, said)


def hear(pipe: Connection) -> Any:
    if not pipe.poll(PATIENCE_S):
        raise SystemExit(f"a rank said nothing for {PATIENCE_S} s")
    return pipe.recv()


def summary(size: int, levels: str, said: list[Any]) -> dict[str, Any]:
    seconds, before, joined, after, peers = zip(*said)

    def mean(later: tuple[Any, ...], earlier: tuple[Any, ...], what: int) -> float:
        return statistics.fmean(b[what] - a[what] for a, b in zip(earlier, later))

    join_s, first_s, second_s = map(max, zip(*seconds))
    return {
        "ranks": size,
        "levels": levels,
        "join_s": round(join_s, 4),
        "first_sum_s": round(first_s, 4),
        "second_sum_s": round(second_s, 4),
        "join_cpu_s": round(mean(joined, before, 0), 4),
        "sums_cpu_s": round(mean(after, joined, 0), 4),
        "mb": round(mean(after, before, 1), 2),
        "connections": max(peers),
    }


def hears(size: int) -> dict[str, Any]:
    """Rank 0's part of the bootstrap of `size` ranks, without the launcher's part and without
    connections: it receives its own introduction again and again."""

    def alone(mine: bytes) -> list[bytes]:
        words.append(mine)
        return [mine]

    def allgather(mine: bytes) -> list[bytes]:
        words.append(mine)
        return [mine] + [mine if len(words) == 1 else nothing] * (size - 1)

    settings = session.Settings()
    engine = session.Engine(settings)
    words: list[bytes] = []
    engine.join(0, 1, alone)
    nothing = words[-1]  # "joined" from all; ranks other than 0 say it all along
    words.clear()
    before = used()
    begun = time.monotonic()
    group = engine.join(0, size, allgather)
    seconds = time.monotonic() - begun
    after = used()
    assert group.size == size
    return {
        "ranks": size,
        "seconds": round(seconds, 4),
        "mb": round(after[1] - before[1], 2),
        "introduction_bytes": len(words[0]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 16, 32, 64, 128, 256])
    os.environ.update(BETWEEN_HOSTS)
    rows = []
    for size in parser.parse_args().ranks:
        for levels in ("auto", str(size)) if size <= MOST_ON_ONE_LEVEL else ("auto",):
            rows.append(measured(size, levels))
            print(json.dumps(rows[-1]), flush=True)
    heard = [hears(size) for size in HEARD]
    print(json.dumps(heard))
    content = {"about": machine(), "joins": rows, "heard": heard}
    RESULT.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
