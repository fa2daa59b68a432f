"""`python -m simulator`: how long an allreduce would take with any number of ranks.

Runs the engine's own protocol over simulated links and processors. Their costs were measured on one
machine: docs/simulator.md says how far the results can be trusted. Each sum is verified. Times are
for one sum that all ranks begin at once. OMNIHVD_SLOTS, OMNIHVD_MESSAGE_BYTES and
OMNIHVD_SCAN_AHEAD count; other settings of the environment do not.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.bench import arguments as words
from benchmarks.bench.report import markdown, size_text
from benchmarks.bench.source import source
from omnihvd import rates
from omnihvd.bench.patterns import PATTERNS, Point
from omnihvd.engine import EngineError
from omnihvd.report.samples import Unusable
from omnihvd.tools import terminal
from simulator import _core, duration, faults
from simulator.model import PAYLOAD, Network, TooLarge, load_masks, point_of_masks, simulate

TOLD_S = 5.0  # between two lines of progress
UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
# Fits 80 columns. bound: the time divided by the least that links need; MB: sent by the host that
# sent most; peers: of the process with the most.
HEADER = ["ranks", "tensor", "non-zero", "ms", "bound", "ring ms", "messages", "MB", "peers"]


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="python -m simulator", description=__doc__)
    p.add_argument("--ranks", type=words.ranks, nargs="+", default=[8, 64], help="(default: 8 64)")
    p.add_argument(
        "--aggregators",
        type=int,
        default=0,
        help="on hosts of their own (default: each rank is one)",
    )
    p.add_argument(
        "--levels",
        nargs="+",
        metavar="N",
        default=[],
        help="of aggregators: how many each joins, from below; auto: at most 64 peers a rank"
        " (default: one level)",
    )
    p.add_argument("--rate", type=rates.rate, default="100gbit", help="of links (default: 100gbit)")
    p.add_argument("--core-rate", type=rates.rate, help="of all that travels together")
    p.add_argument("--delay", type=words.delay, default="5us", help="one way (default: 5us)")
    p.add_argument("--bytes", type=words.size, nargs="+", default=[100e6], help="(default: 100MB)")
    p.add_argument(
        "--densities", metavar="SHARE", type=words.density, nargs="+", default=[1, 0.1, 0.01]
    )
    p.add_argument(
        "--patterns",
        nargs="+",
        metavar="NAME",
        default=["random"],
        choices=PATTERNS[:-1],
        help=f"of {', '.join(PATTERNS[:-1])}",
    )
    p.add_argument(
        "--masks",
        nargs="+",
        metavar="FILE",
        type=Path,
        help="real gradients of `omnihvd report FOLDER --masks FILE`, instead of made-up ones",
    )
    p.add_argument("--late-ms", type=float, default=0, help="the last rank begins so much later")
    p.add_argument("--loss", type=words.density, default=0, help="of datagrams, such as 0.01")
    p.add_argument("--cores", type=int, default=0, help="that all hosts share (default: one each)")
    p.add_argument("--streams", type=int, default=0, help="engine threads (default: by the rate)")
    p.add_argument(
        "--json", type=Path, help="write outcomes here, as they come, and how far one is"
    )
    p.add_argument("--goal", type=Path, help="write the first sum's schedule here, for LogGOPSim")
    group = p.add_argument_group("random jobs over a bad network, instead")
    group.add_argument("--faults", action="store_true", help="run them until one goes wrong")
    group.add_argument("--seed", type=int, default=0, help="of the first; they ascend")
    group.add_argument("--jobs", type=int, help="how many (default: 1, or as --seconds has it)")
    group.add_argument("--seconds", type=float, default=0, help="for so long")
    group.add_argument("--processes", type=int, default=1, help="that share them (default: 1)")
    group.add_argument("--resume", action="store_true", help="go on where the file of --json ends")
    return p


def seconds(text: str) -> float:
    """Parses a delay as the benchmarks write it."""
    unit = next(unit for unit in UNITS if text.endswith(unit))
    return float(text[: -len(unit)]) * UNITS[unit]


def fans(words: list[str], ranks: int, dedicated: int = 0) -> list[int]:
    """Parses --levels into fan-outs, as OMNIHVD_LEVELS is parsed; none: one level."""
    return _core.fans_of("x".join(words), ranks, dedicated) if words else []


def points(args: argparse.Namespace) -> list[tuple[int, Point]]:
    """Ranks and tensors. Unusable if a file of masks is none."""
    if args.masks:
        return [(ranks, point) for point in map(point_of_masks, args.masks) for ranks in args.ranks]
    return [
        (ranks, Point(max(1, int(size // 4)), density, pattern))
        for size in args.bytes
        for pattern in args.patterns
        for density in args.densities
        for ranks in args.ranks
    ]


def row(ranks: int, point: Point, outcome: dict[str, Any]) -> list[str]:
    return [
        str(ranks),
        size_text(point.bytes),
        f"{100 * point.density:.3g}% {Path(point.pattern).stem}",
        f"{1e3 * outcome['seconds']:.2f}",
        f"{outcome['seconds'] / outcome['bound_s']:.2f}" if outcome["bound_s"] else "",
        f"{1e3 * outcome['ring_s']:.2f}",
        str(outcome["messages"]),
        f"{outcome['most_bytes'] / 1e6:.1f}",
        str(outcome["most_peers"]),
    ]


def loggopsim(network: Network) -> str:
    """How to simulate a schedule with the same links: times in picoseconds."""
    delay, byte = round(1e12 * network.delay_s), round(1e12 / network.rate)
    return f"txt2bin -i GOAL -o BIN; LogGOPSim -f BIN -o 0 -g 0 -S 2147483647 -L {delay} -G {byte}"


def run(args: argparse.Namespace) -> None:
    network = Network(
        PAYLOAD * rates.rate_bytes(args.rate),
        seconds(args.delay),
        PAYLOAD * rates.rate_bytes(args.core_rate) if args.core_rate else 0.0,
        args.cores,
        args.loss,
        args.streams,
    )
    done: list[dict[str, Any]] = []

    def write(under_way: dict[str, Any] | None) -> None:
        if not args.json:
            return
        arguments = {k: str(v) for k, v in vars(args).items()}
        content = {**source(), "arguments": arguments, "results": done}
        if under_way:
            content["under_way"] = under_way
        args.json.write_text(json.dumps(content, indent=1) + "\n")

    wanted = [
        (ranks, point, fans(args.levels, ranks, args.aggregators)) for ranks, point in points(args)
    ]
    jobs = [
        (ranks, point, duration.messages(ranks, point, network, args.aggregators, levels))
        for ranks, point, levels in wanted
    ]
    write(None)  # now: a file that cannot be written is said before hours of simulation
    if args.goal:
        args.goal.touch()
    print(terminal.fill(duration.told(jobs), terminal.width(sys.stderr)), file=sys.stderr)
    for path in args.masks or ():
        samples, most = len(load_masks(path).bits), max(args.ranks)
        if samples < most:
            text = f"{path}: {samples} samples for {most} ranks, so some repeat: too small a union"
            print(terminal.fill(text, terminal.width(sys.stderr)), file=sys.stderr)
    print(markdown(HEADER, []), flush=True)
    for ranks, point, levels in wanted:
        begin = time.monotonic()
        outcome = simulate(
            ranks,
            point,
            network,
            dedicated=args.aggregators,
            fans=levels,
            late_s=args.late_ms / 1e3,
            goal=args.goal is not None and not done,
            progress=Progress(ranks, point, write),
        )
        took = time.monotonic() - begin
        print("| " + " | ".join(row(ranks, point, outcome)) + " |", flush=True)
        schedule = outcome.pop("goal", "")
        if schedule:
            args.goal.write_text(schedule)
            print(f"{args.goal}: {loggopsim(network)}", file=sys.stderr)
        outcome.pop("done_s")
        done.append({"ranks": ranks, "point": vars(point), "took_s": took, **outcome})
        write(None)


class Progress:
    """Reports the progress of a long simulation: lines to stderr, and calls of `write`."""

    def __init__(self, ranks: int, point: Point, write: Callable[[dict[str, Any]], object]) -> None:
        self.ranks, self.point, self.write = ranks, point, write
        self.begin = self.told = time.monotonic()

    def __call__(self, share: float) -> None:
        now = time.monotonic()
        if now - self.told < TOLD_S:
            return
        self.told, took = now, now - self.begin
        left = took / share - took if share > 0 else None
        more = "" if left is None else f", about {left:.0f} s more"
        what = f"{self.ranks} ranks, {size_text(self.point.bytes)}, {100 * self.point.density:.3g}%"
        print(f"{what}: {share:.0%} after {took:.0f} s{more}", file=sys.stderr, flush=True)
        about = {"ranks": self.ranks, "point": vars(self.point)}
        self.write({**about, "share": share, "took_s": took, "left_s": left})


def look_for_faults(args: argparse.Namespace) -> int:
    least = min(args.processes, 1 if args.jobs is None else args.jobs)
    if args.seed < 0 or args.seconds < 0 or least < 1:
        parser().error(
            "--seed and --seconds are not negative, and --jobs and --processes are at least 1"
        )
    jobs = args.jobs or (sys.maxsize if args.seconds else 1)
    try:
        if args.json:
            args.json.touch()  # says at once that it cannot be written
        outcome = faults.run(args.seed, jobs, args.seconds, args.json, args.processes, args.resume)
    except (EngineError, OSError) as why:
        print(f"python -m simulator: {why}", file=sys.stderr)
        return 1
    if outcome["failure"] is None:
        if jobs == 1:
            print(outcome["last_job"])
        return 0
    again = f"python -m simulator --faults --seed {outcome['failed_seed']}"
    print(f"python -m simulator: {outcome['failure']}\nonce more: {again}", file=sys.stderr)
    return 1


def main(arguments: list[str] | None = None) -> int:
    args = parser().parse_args(arguments)
    if args.faults:
        return look_for_faults(args)
    if args.aggregators < 0 or min(args.cores, args.streams, args.late_ms) < 0:
        parser().error("--aggregators, --cores, --streams and --late-ms are not negative")
    if args.levels != ["auto"] and not all(
        word.isdecimal() and int(word) > 1 for word in args.levels
    ):
        parser().error("--levels are numbers above 1, such as 16 16, or auto")
    try:
        run(args)
    except (TooLarge, Unusable, EngineError, OSError) as why:
        print(f"python -m simulator: {why}", file=sys.stderr)
        return 1
    return 0
