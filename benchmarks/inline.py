"""Aggregators in the data path: XDP and AF_XDP beside a socket, sparse beside dense blocks.

    sudo python benchmarks/inline.py [--workers 4] [--megabytes 10]

On emulated hosts without shaped links, one host aggregates and the others sum through it. A random
share of each worker's blocks is zero. Each sum is verified in closed form; a sample is the slowest
worker's time. It measures, by aggregator (socket, xdp, af-xdp), arithmetic (integers; floats and
FPISA's, where supported) and share of zeros:

  sparse   workers send only non-zero blocks (OmniReduce)
  dense    workers send all blocks (SwitchML*)

Links pass datagrams one by one (gso_max_segs 1), as real networks do. `joined` has a socket, on
hosts with kernels that pass runs of datagrams as one.

The aggregator's processor time is its process's and, with XDP and AF_XDP, the program's, from the
kernel (kernel.bpf_stats_enabled). It excludes the kernel's work to deliver datagrams to the
aggregator and the workers; the whole machine's processor time includes that. Writes
results/inline.json.
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
from benchmarks.bench.command import machine  # noqa: E402
from benchmarks.bench.lab import Lab  # noqa: E402
from omnihvd import engine, inline  # noqa: E402
from omnihvd.inline.aggregator import GROUP, Aggregator, running  # noqa: E402

RESULTS = Path(__file__).parent / "results"
ZEROS = (0.0, 0.4, 0.9, 0.99)
ADDED = {
    "socket": ("integer", "float", "fpisa"),
    "xdp": ("integer", "fpisa"),
    "af-xdp": ("integer", "float", "fpisa"),
}
RUNS = 5  # of each point, besides a first
SECRET = "the secret of a benchmark"
STATS = Path("/proc/sys/kernel/bpf_stats_enabled")


def tensor(rank: int, count: int, zeros: float, dtype: str) -> np.ndarray:
    blocks = -(-count // inline_block())
    keep = np.random.default_rng(rank).permutation(blocks) >= round(zeros * blocks)
    values = np.arange(count, dtype=np.int32) % 1009 + rank + 1  # exact as floats, too
    return np.where(np.repeat(keep, inline_block())[:count], values, 0).astype(dtype)


def inline_block() -> int:
    return int(inline.core().BLOCK)


def worker_main(rank: int, ranks: int, count: int, session: int, arithmetic: str) -> None:
    """Runs on each worker: sums on command."""
    made: dict[float, tuple[np.ndarray, np.ndarray]] = {}
    dtype = "int32" if arithmetic == "integer" else "float32"
    of = {"rank": rank, "ranks": ranks, "session": session, "arithmetic": arithmetic}
    with inline.Worker("10.0.0.1", secret=SECRET, **of) as one:  # type: ignore[arg-type]
        print("joined", flush=True)
        for line in sys.stdin:
            zeros, dense = json.loads(line)
            if zeros not in made:
                parts = (tensor(r, count, zeros, dtype) for r in range(ranks))
                made[zeros] = (
                    tensor(rank, count, zeros, dtype),
                    sum(parts, np.zeros(count, dtype)),
                )
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

    def sum(self, zeros: float, dense: bool) -> tuple[float, dict[str, int]]:
        """Seconds of the slowest worker; what all have sent so far."""
        for worker in self.workers:
            say(worker, json.dumps([zeros, dense]))
        for worker in self.workers:
            hear(worker)
        for worker in self.workers:
            say(worker, "")
        answers = [json.loads(hear(worker)) for worker in self.workers]
        sent = {name: sum(a[1][name] for a in answers) for name in ("sent", "again", "blocks")}
        return max(a[0] for a in answers), sent

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


def measured(
    lab: Lab, name: str, arithmetic: str, joined: bool, args: argparse.Namespace
) -> list[dict]:
    set_links(lab, name, joined)
    plane = Plane(lab, name, arithmetic, args.workers, args.megabytes * 250_000)
    points: list[dict[str, Any]] = []
    for zeros, dense in [(0.0, True), *((zeros, False) for zeros in ZEROS)]:
        found = plane.measure(zeros, dense, args.runs)
        of: dict[str, Any] = {"plane": name, "arithmetic": arithmetic, "joined": joined}
        of.update(zeros=zeros, dense=dense)
        points.append({**of, **found})
        print(
            f"{name}{', joined' * joined}, {arithmetic}, {zeros:.0%} zeros{', dense' * dense}: "
            f"{1e3 * found['median']:.1f} ms, "
            f"aggregator {1e3 * found['aggregator_s']:.1f} ms, "
            f"{found['ns_per_element']:.2f} ns an element, "
            f"machine {1e3 * found['machine_s']:.0f} ms, {found['again']:.0f} again",
            flush=True,
        )
    plane.close()
    return points


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--megabytes", type=int, default=10)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--json", type=Path, default=RESULTS / "inline.json")
    args = parser.parse_args()
    points: list[dict[str, Any]] = []
    STATS.write_text("1\n")
    try:
        with Lab(1 + args.workers, rate=None) as lab:
            for name, arithmetics in ADDED.items():
                for arithmetic in arithmetics:
                    points += measured(lab, name, arithmetic, False, args)
            points += measured(lab, "socket", "integer", True, args)
    finally:
        STATS.write_text("0\n")
    results = {
        **machine(),
        "configuration": {name: getattr(args, name) for name in ("workers", "megabytes", "runs")},
        "kernel": os.uname().release,
        "cores": os.cpu_count(),
        "points": points,
    }
    args.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        worker_main(*map(int, sys.argv[2:6]), sys.argv[6])
    elif sys.argv[1:2] == ["--aggregator"]:
        aggregator_main(sys.argv[2])
    else:
        main()
