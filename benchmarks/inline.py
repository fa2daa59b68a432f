"""Aggregators in the data path: the XDP program beside a socket, sparse beside dense blocks.

    sudo python benchmarks/inline.py [--workers 4] [--megabytes 10]

Emulated hosts, without shaped links: one aggregates, the others sum int32 through it. A share of
the blocks is zero at random, of each worker independently. Each sum is verified in closed form; a
sample is the slowest worker's time. Per plane (socket, xdp) and share of zeros:

  sparse   only non-zero blocks travel (OmniReduce)
  dense    all do (SwitchML*)

Processor time of the aggregator is, of the socket, that of its process; of XDP that of the
program, as the kernel counts it (kernel.bpf_stats_enabled), and of its process. What the kernel
does to bring datagrams to either and to the workers is in neither: it is in the whole machine's
processor time.
Writes results/inline.json.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from omnihvd import engine, inline  # noqa: E402
from omnihvd.bench.lab import Lab  # noqa: E402
from omnihvd.inline.aggregator import GROUP, Aggregator, running  # noqa: E402

RESULTS = Path(__file__).parent / "results"
ZEROS = (0.0, 0.4, 0.9, 0.99)
RUNS = 7  # of each point, besides a first
SECRET = "the secret of a benchmark"
STATS = Path("/proc/sys/kernel/bpf_stats_enabled")


def tensor(rank: int, count: int, zeros: float) -> np.ndarray:
    blocks = -(-count // inline_block())
    keep = np.random.default_rng(rank).permutation(blocks) >= round(zeros * blocks)
    values = np.arange(count, dtype=np.int32) % 1009 + rank + 1
    return np.where(np.repeat(keep, inline_block())[:count], values, 0).astype(np.int32)


def inline_block() -> int:
    return int(engine.inline_path.BLOCK)


def worker_main(rank: int, ranks: int, count: int, session: int) -> None:
    """What each worker runs: sums as it is told."""
    made: dict[float, tuple[np.ndarray, np.ndarray]] = {}
    with inline.Worker("10.0.0.1", rank=rank, ranks=ranks, session=session, secret=SECRET) as one:
        print("joined", flush=True)
        for line in sys.stdin:
            zeros, dense = json.loads(line)
            if zeros not in made:
                parts = (tensor(r, count, zeros) for r in range(ranks))
                made[zeros] = (tensor(rank, count, zeros), sum(parts, np.zeros(count, np.int32)))
            given, expected = made[zeros]
            buffer = given.copy()
            print("ready", flush=True)
            input()
            start = time.perf_counter()
            one.sum(buffer, dense)
            seconds = time.perf_counter() - start
            if not np.array_equal(buffer, expected):
                raise SystemExit(f"a wrong sum on worker {rank}")
            print(json.dumps([seconds, one.stats()]), flush=True)


def aggregator_main(plane: str) -> None:
    """What the aggregator runs: for each line, its processor time and counts so far."""
    interface = "eth0" if plane == "xdp" else None
    made = Aggregator(SECRET, interface=interface, host="10.0.0.1", group=GROUP)
    with running(made):
        print("up", flush=True)
        for _ in sys.stdin:
            usage = resource.getrusage(resource.RUSAGE_SELF)
            runs, nanoseconds = made.plane.run_time() if made.plane else (0, 0)
            own = usage.ru_utime + usage.ru_stime
            said = {"process": own, "program": nanoseconds / 1e9, "runs": runs, **made.counts()}
            if made.plane:
                said["verified"] = made.plane.verified_instructions
            print(json.dumps(said), flush=True)


def start(lab: Lab, host: int, *arguments: object) -> subprocess.Popen[str]:
    program = [sys.executable, str(Path(__file__).resolve()), *map(str, arguments)]
    pipe = subprocess.PIPE
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        lab.hosts[host].command(program), env=env, stdin=pipe, stdout=pipe, text=True
    )


def say(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdin
    process.stdin.write(word + "\n")
    process.stdin.flush()


def hear(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    line = process.stdout.readline().strip()
    if not line:
        raise SystemExit("a process has ended")
    return line


def busy() -> float:
    """Seconds for which this machine's processors have worked."""
    with Path("/proc/stat").open() as stat:
        user, nice, system, _, _, irq, softirq, *_ = map(int, stat.readline().split()[1:])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


class Plane:
    """An aggregator of one kind, and its workers."""

    def __init__(self, lab: Lab, plane: str, workers: int, count: int) -> None:
        self.aggregator = start(lab, 0, "--aggregator", plane)
        hear(self.aggregator)
        session = inline.random_session()
        self.workers = [
            start(lab, 1 + rank, "--worker", rank, workers, count, session)
            for rank in range(workers)
        ]
        for worker in self.workers:
            hear(worker)

    def spent(self) -> dict[str, float]:
        say(self.aggregator, "")
        return json.loads(hear(self.aggregator))

    def sum(self, zeros: float, dense: bool) -> tuple[float, int, int]:
        """Seconds of the slowest worker; datagrams that all have sent so far, and again."""
        for worker in self.workers:
            say(worker, json.dumps([zeros, dense]))
        for worker in self.workers:
            hear(worker)
        for worker in self.workers:
            say(worker, "")
        answers = [json.loads(hear(worker)) for worker in self.workers]
        sent, again = (sum(a[1][name] for a in answers) for name in ("sent", "again"))
        return max(a[0] for a in answers), sent, again

    def measure(self, zeros: float, dense: bool, runs: int) -> dict[str, Any]:
        first = self.sum(zeros, dense)
        before, worked = self.spent(), busy()
        sums = [self.sum(zeros, dense) for _ in range(runs)]
        worked, after = busy() - worked, self.spent()
        grown = {name: (after[name] - before[name]) / runs for name in after}
        blocks = grown["taken"]
        processor = grown["process"] + grown["program"]
        return {
            "seconds": [one[0] for one in sums],
            "median": statistics.median(one[0] for one in sums),
            "machine_s": worked / runs,
            "aggregator_s": processor,
            "program_s": grown["program"],
            "runs": grown["runs"],
            "contributions": blocks,
            "results": grown["results"],
            "sent": (sums[-1][1] - first[1]) / runs,
            "again": (sums[-1][2] - first[2]) / runs,
            "verified": after.get("verified"),
        }

    def close(self) -> None:
        for process in [*self.workers, self.aggregator]:
            assert process.stdin
            process.stdin.close()
            process.wait(20)


def open_lab(workers: int) -> Lab:
    lab = Lab(1 + workers, rate=None)
    program = str(engine.LIBRARIES / "pass.bpf.o")
    other_end = ["ip", "link", "set", "dev", "port-h0", "xdp", "obj", program, "sec", "xdp"]
    subprocess.run(lab.command(other_end), check=True)
    return lab


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--megabytes", type=int, default=10)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--json", type=Path, default=RESULTS / "inline.json")
    args = parser.parse_args()
    points: list[dict[str, Any]] = []
    configuration = {"workers": args.workers, "megabytes": args.megabytes, "runs": args.runs}
    results = {
        "configuration": configuration,
        "kernel": os.uname().release,
        "cores": os.cpu_count(),
        "points": points,
    }
    STATS.write_text("1\n")
    try:
        with open_lab(args.workers) as lab:
            for name in ("socket", "xdp"):
                plane = Plane(lab, name, args.workers, args.megabytes * 250_000)
                for zeros, dense in [(0.0, True), *((zeros, False) for zeros in ZEROS)]:
                    found = plane.measure(zeros, dense, args.runs)
                    points.append({"plane": name, "zeros": zeros, "dense": dense, **found})
                    print(
                        f"{name}, {zeros:.0%} zeros{', dense' * dense}: "
                        f"{1e3 * found['median']:.1f} ms, "
                        f"aggregator {1e3 * found['aggregator_s']:.1f} ms, "
                        f"machine {1e3 * found['machine_s']:.0f} ms, {found['again']:.0f} again",
                        flush=True,
                    )
                plane.close()
    finally:
        STATS.write_text("0\n")
    args.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        worker_main(*map(int, sys.argv[2:]))
    elif sys.argv[1:2] == ["--aggregator"]:
        aggregator_main(sys.argv[2])
    else:
        main()
