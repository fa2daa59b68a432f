"""Estimates how long the benchmark will take."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Mapping, Sequence

from benchmarks.bench.report import DENSE, duration_text, size_text
from benchmarks.bench.settings import settings_of
from omnihvd.bench.patterns import Point
from omnihvd.rates import rate_bytes

START_S, FIRST_S = 5, 1  # of a backend's ranks, and of the first sums of a point
COMPARED = 1.5  # settings that are measured at a point, where there are several
MEMORY_RATE = 1e9  # bytes/s that a core sums, copies or verifies
CHECKED = 4  # times that a core goes over a tensor, to draw and to verify it


def sum_s(backend: str, point: Point, ranks: int, rate: str | None) -> float:
    """Seconds of one sum, on links or on the cores that ranks share. rate: None: on one host."""
    blocks = point.density * (3 if point.pattern == "elements" else 1)  # packed ones included
    share = 1.0 if backend in DENSE else min(1.0, 2 * blocks)  # other ranks' blocks included
    moved = 2 * (ranks - 1) / ranks * point.bytes * share
    core = point.bytes * ranks / (os.cpu_count() or 1) / MEMORY_RATE
    return max(moved / rate_bytes(rate) if rate else 0.0, core * share, 1e-4)


def sampling_s(
    backend: str, point: Point, ranks: int, rate: str | None, args: argparse.Namespace
) -> float:
    """Seconds of all samples of one setting at a point."""
    one = sum_s(backend, point, ranks, rate) + args.compute_ms / 1e3
    return float(max(args.min_seconds, args.min_runs * one))


def seconds(points: Mapping[str, Sequence[Point]], args: argparse.Namespace) -> float:
    """Seconds of the whole run. points: of each backend."""
    rate = None if args.local or args.rate == "none" else args.rate
    total = 0.0
    for ranks in args.ranks:
        for backend, wanted in points.items():
            settings = len(settings_of(backend, args.local)) if wanted else 0
            for point in wanted:
                checked = CHECKED * point.bytes * ranks / (os.cpu_count() or 1) / MEMORY_RATE
                first = FIRST_S + checked + 3 * sum_s(backend, point, ranks, rate)
                measured = sampling_s(backend, point, ranks, rate, args)
                total += settings * first + min(settings, COMPARED) * measured
            total += settings * START_S
    return total


def told(points: Mapping[str, Sequence[Point]], args: argparse.Namespace) -> str:
    largest = max((p.bytes for wanted in points.values() for p in wanted), default=0)
    count = sum(len(wanted) for wanted in points.values()) * len(args.ranks)
    settings = sum(len(settings_of(backend, args.local)) for backend in points)
    return (
        f"this takes about {duration_text(seconds(points, args))}: {count} points of at most "
        f"{size_text(largest)}, {len(points)} backends in {settings} settings. "
        f"Shorter: {', '.join(shorter(args))}"
    )


def shorter(args: argparse.Namespace) -> Iterable[str]:
    """Options that shorten it, the most effective ones first."""
    wide = ("backends", "densities", "bytes", "ranks", "patterns", "dtypes")
    many = [f"fewer --{name}" for name in wide if len(getattr(args, name)) > 1]
    return [*many, "smaller --bytes", "--min-seconds 0.5"]
