"""Aggregators in the data path: XDP and AF_XDP beside a socket, sparse beside dense blocks.

    sudo python benchmarks/inline.py [--workers 4] [--megabytes 10] [--losses 0 0.001 0.01]

On emulated hosts without shaped links, one host aggregates and the others sum through it. A random
share of each worker's blocks is zero. Each sum is verified in closed form; a sample is the slowest
worker's time. It measures, by aggregator (socket, xdp, af-xdp), arithmetic (integers, floats as
integers; floats, FPISA's and natural compression's, where supported) and share of zeros:

  sparse   workers send only non-zero blocks (OmniReduce)
  dense    workers send all blocks (SwitchML*)

Links pass datagrams one by one (gso_max_segs 1), as real networks do. `joined` has a socket, on
hosts with kernels that pass runs of datagrams as one. Aggregators and arithmetics take turns, in
three rounds.

--losses: with integers, hosts drop these shares of the frames that they receive (loss.py). iptables
does that. XDP and AF_XDP take contributions before it, so with them only results are lost.

The aggregator's processor time is its process's and, with XDP and AF_XDP, the program's, from the
kernel (kernel.bpf_stats_enabled). It excludes the kernel's work to deliver datagrams to the
aggregator and the workers; the whole machine's processor time includes that. A worker's is its
process's in its sums, over the bytes of its tensor: conversion of floats, and the kernel's work in
its calls. Writes results/inline.json, in about ten minutes.
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
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from benchmarks.bench.command import machine  # noqa: E402
from benchmarks.bench.lab import Lab  # noqa: E402
from benchmarks.bench.worker import cpu_seconds  # noqa: E402
from benchmarks.loss import set_loss  # noqa: E402
from omnihvd import engine, inline  # noqa: E402
from omnihvd.inline.aggregator import GROUP, Aggregator, running  # noqa: E402

RESULTS = Path(__file__).parent / "results"
ZEROS = (0.0, 0.4, 0.9, 0.99)
OF_FLOATS = "integer, of floats"  # float32 that workers convert
ADDED = {
    "socket": ("integer", OF_FLOATS, "float", "fpisa", "natural"),
    "xdp": ("integer", OF_FLOATS, "fpisa"),
    "af-xdp": ("integer", OF_FLOATS, "float", "fpisa", "natural"),
}
LOSSES = (0.0, 0.001, 0.01)
RUNS, ROUNDS = 15, 3  # of each point, besides a first in each round
SECRET = "the secret of a benchmark"
STATS = Path("/proc/sys/kernel/bpf_stats_enabled")


def tensor(rank: int, count: int, zeros: float, dtype: str, powers: bool) -> np.ndarray:
    """With powers, of two: natural compression sends them as they are."""
    blocks = -(-count // inline_block())
    keep = np.random.default_rng(rank).permutation(blocks) >= round(zeros * blocks)
    values = np.arange(count, dtype=np.int32) % 1009 + rank + 1  # exact as floats, too
    if powers:
        values = 2 ** (values % 10)
    return np.where(np.repeat(keep, inline_block())[:count], values, 0).astype(dtype)


def inline_block() -> int:
    return int(inline.core().BLOCK)


def worker_main(rank: int, ranks: int, count: int, session: int, arithmetic: str) -> None:
    """Runs on each worker: sums on command."""
    made: dict[float, tuple[np.ndarray, np.ndarray]] = {}
    dtype = "int32" if arithmetic == "integer" else "float32"
    added = "integer" if arithmetic == OF_FLOATS else arithmetic
    powers = arithmetic == "natural"
    of = {"rank": rank, "ranks": ranks, "session": session, "arithmetic": added}
    with inline.Worker("10.0.0.1", secret=SECRET, **of) as one:  # type: ignore[arg-type]
        print("joined", flush=True)
        for line in sys.stdin:
            zeros, dense = json.loads(line)
            if zeros not in made:
                parts = [tensor(r, count, zeros, dtype, powers) for r in range(ranks)]
                made[zeros] = parts[rank], sum(parts, np.zeros(count, dtype))
            given, expected = made[zeros]
            buffer = given.copy()
            print("ready", flush=True)
            input()
            worked, start = cpu_seconds([]), time.perf_counter()
            one.sum(buffer, dense)
            seconds, worked = time.perf_counter() - start, cpu_seconds([]) - worked
            if not np.array_equal(buffer, expected):
                raise SystemExit(f"a wrong sum on worker {rank}")
            print(json.dumps([seconds, one.stats(), worked / buffer.nbytes]), flush=True)


def aggregator_main(plane: str) -> None:
    """Runs on the aggregator: answers each line with its processor time and counts so far."""
    interface = None if plane == "socket" else "eth0"
    past = plane == "af-xdp"
    made = Aggregator(SECRET, interface=interface, af_xdp=past, host="10.0.0.1", group=GROUP)
    loaded = made.plane or made.interface
    with running(made):
        print("up", flush=True)
        for _ in sys.stdin:
            usage = resource.getrusage(resource.RUSAGE_SELF)
            runs, nanoseconds = loaded.run_time() if loaded else (0, 0)
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

    def __init__(self, lab: Lab, plane: str, arithmetic: str, workers: int, count: int) -> None:
        self.aggregator = start(lab, 0, "--aggregator", plane)
        hear(self.aggregator)
        session = inline.random_session()
        self.workers = [
            start(lab, 1 + rank, "--worker", rank, workers, count, session, arithmetic)
            for rank in range(workers)
        ]
        for worker in self.workers:
            hear(worker)

    def spent(self) -> dict[str, float]:
        say(self.aggregator, "")
        return json.loads(hear(self.aggregator))

    def sum(self, zeros: float, dense: bool) -> tuple[float, dict[str, int], float]:
        """Seconds of the slowest worker; what all have sent so far; processor seconds of a worker
        for each byte of its tensor."""
        for worker in self.workers:
            say(worker, json.dumps([zeros, dense]))
        for worker in self.workers:
            hear(worker)
        for worker in self.workers:
            say(worker, "")
        answers = [json.loads(hear(worker)) for worker in self.workers]
        sent = {name: sum(a[1][name] for a in answers) for name in ("sent", "again", "blocks")}
        return max(a[0] for a in answers), sent, statistics.mean(a[2] for a in answers)

    def measure(self, zeros: float, dense: bool, runs: int) -> dict[str, Any]:
        first = self.sum(zeros, dense)
        before, worked = self.spent(), busy()
        sums = [self.sum(zeros, dense) for _ in range(runs)]
        worked, after = busy() - worked, self.spent()
        grown = {name: (after[name] - before[name]) / runs for name in after}
        sent = {name: (n - first[1][name]) / runs for name, n in sums[-1][1].items()}
        processor = grown["process"] + grown["program"]
        return {
            "seconds": [one[0] for one in sums],
            "median": statistics.median(one[0] for one in sums),
            "machine_s": worked / runs,
            "aggregator_s": processor,
            "worker_s_per_gb": 1e9 * statistics.mean(one[2] for one in sums),
            "program_s": grown["program"],
            "runs": grown["runs"],
            "dropped": grown.get("dropped", 0),
            "ns_per_element": 1e9 * processor / (sent["blocks"] * inline_block()),
            "contributions": grown["taken"],
            "results": grown["results"],
            **sent,
            "verified": after.get("verified"),
        }

    def close(self) -> None:
        for process in [*self.workers, self.aggregator]:
            assert process.stdin
            process.stdin.close()
            process.wait(20)


def set_links(lab: Lab, plane: str, joined: bool) -> None:
    """The aggregator's veth takes what XDP sends only if its other end has a program."""
    other_end = ["ip", "link", "set", "dev", "port-h0", "xdp"]
    subprocess.run(lab.command([*other_end, "off"]), check=True)
    if plane == "xdp":
        program = ["obj", str(engine.LIBRARIES / "pass.bpf.o"), "sec", "xdp"]
        subprocess.run(lab.command([*other_end, *program]), check=True)
    most = ["gso_max_segs", "65535" if joined else "1"]
    for host in lab.hosts:
        subprocess.run(host.command(["ip", "link", "set", "eth0", *most]), check=True)


class Row(NamedTuple):
    """An aggregator, and what it adds."""

    plane: str
    arithmetic: str
    joined: bool = False
    loss: float = 0.0


def rows(losses: Sequence[float]) -> list[Row]:
    """All that is measured: without loss each arithmetic, with loss integers alone."""
    found = [Row(plane, one) for plane, added in ADDED.items() for one in added]
    found.append(Row("socket", "integer", joined=True))
    for loss in filter(None, losses):
        found += [Row(plane, "integer", loss=loss) for plane in ADDED]
    return found


def measured(lab: Lab, row: Row, args: argparse.Namespace) -> list[dict[str, Any]]:
    """The row's points, in one round."""
    set_links(lab, row.plane, row.joined)
    set_loss(lab, row.loss)
    plane = Plane(lab, row.plane, row.arithmetic, args.workers, args.megabytes * 250_000)
    points = []
    for zeros, dense in [(0.0, True), *((zeros, False) for zeros in ZEROS)]:
        found = plane.measure(zeros, dense, -(-args.runs // ROUNDS))
        points.append({**row._asdict(), "zeros": zeros, "dense": dense, **found})
        print(
            f"{row.plane}{', joined' * row.joined}, {row.arithmetic}, {row.loss:.1%} lost, "
            f"{zeros:.0%} zeros{', dense' * dense}: {1e3 * found['median']:.1f} ms, "
            f"aggregator {1e3 * found['aggregator_s']:.1f} ms, "
            f"{found['ns_per_element']:.2f} ns an element, "
            f"a worker {found['worker_s_per_gb']:.2f} s/GB, "
            f"machine {1e3 * found['machine_s']:.0f} ms, {found['again']:.0f} again",
            flush=True,
        )
    plane.close()
    set_loss(lab, 0)
    return points


def of_rounds(rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One point of a point's rounds: all seconds, their median, and means of what else is counted
    for each sum."""
    seconds = [second for one in rounds for second in one["seconds"]]
    joined = {**rounds[-1], "seconds": seconds, "median": statistics.median(seconds)}
    for name, value in rounds[-1].items():
        if name not in ("median", "zeros", "loss", "verified") and type(value) in (int, float):
            joined[name] = statistics.mean(one[name] for one in rounds)
    return joined


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--megabytes", type=int, default=10)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--losses", type=float, nargs="+", default=LOSSES)
    parser.add_argument("--json", type=Path, default=RESULTS / "inline.json")
    args = parser.parse_args()
    STATS.write_text("1\n")
    try:
        with Lab(1 + args.workers, rate=None) as lab:
            rounds = [
                [point for row in rows(args.losses) for point in measured(lab, row, args)]
                for _ in range(ROUNDS)
            ]
    finally:
        STATS.write_text("0\n")
    given = ("workers", "megabytes", "runs", "losses")
    results = {
        **machine(),
        "configuration": {name: getattr(args, name) for name in given},
        "kernel": os.uname().release,
        "cores": os.cpu_count(),
        "points": [of_rounds(of_point) for of_point in zip(*rounds)],
    }
    args.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        worker_main(*map(int, sys.argv[2:6]), sys.argv[6])
    elif sys.argv[1:2] == ["--aggregator"]:
        aggregator_main(sys.argv[2])
    else:
        main()
