"""All figures that have a target, in one run of about 40 minutes.

    sudo python benchmarks/targets.py [--only NAME ...]

Runs benchmarks/bench in several configurations, benchmarks/training.py and benchmarks/idle.py, and
writes what they write to results/ (raw samples, configuration, commit; plots), and a table of
figures beside their targets to results/targets.md. A ratio is of medians of one run. --only redoes
some of the runs and takes the others' results as they are.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from benchmarks.bench import command, duration  # noqa: E402
from benchmarks.bench.lab import mpirun_env  # noqa: E402
from benchmarks.bench.report import columns, markdown, same_work  # noqa: E402
from omnihvd.bench.patterns import Point  # noqa: E402

RESULTS = Path(__file__).parent / "results"
AG = "agsparse agsparse-of-dense"
BENCH = {
    "hosts4-1gbit": "--densities 1 0.4 0.1 0.01 0.001 --min-seconds 1.5",
    "hosts4-patterns": "--patterns identical disjoint zipf --densities 0.1 0.01 0.001 "
    f"--backends omnihvd omnihvd-dedicated {AG} --min-seconds 1",
    "hosts4-elements": "--patterns elements --densities 0.05 0.01 "
    f"--backends omnihvd omnihvd-dedicated {AG} --min-seconds 1",
    "hosts4-small": "--bytes 1e3 4e3 16e3 64e3 256e3 1e6 --densities 1 0.01 "
    "--backends omnihvd omnihvd-dedicated horovod --min-seconds 1",
    "hosts8-500mbit": "--ranks 8 --rate 500mbit --densities 1 "
    "--backends omnihvd omnihvd-dedicated gloo --min-seconds 1",
    "workers": "--ranks 2 4 8 --rate 500mbit --densities 1 "
    "--backends omnihvd omnihvd-dedicated --min-seconds 1",
    "host1": "--local --ranks 2 --densities 1 0.1 0.01 "
    "--backends omnihvd gloo horovod --min-seconds 2",
    "host1-small": "--local --ranks 2 --bytes 1e3 4e3 16e3 64e3 256e3 1e6 --densities 1 0.01 "
    "--backends omnihvd horovod --min-seconds 1",
}
OTHERS = {"training": 8.0, "idle": 0.5, "predictions": 8.0, "simulation": 4.0}  # minutes
Rows = list[tuple[str, str, float, bool]]  # figure, target, measured, met


class Run:
    """The results of one run of benchmarks/bench."""

    def __init__(self, name: str) -> None:
        self.results = json.loads((RESULTS / f"{name}.json").read_text())["results"]

    def points(self, **fields: Any) -> list[Point]:
        points = dict.fromkeys(Point(**r["point"]) for r in self.results)
        return [p for p in points if all(getattr(p, k) == v for k, v in fields.items())]

    def of(self, backend: str, point: Point, ranks: int | None = None) -> dict[str, Any]:
        for r in self.results:
            same_ranks = ranks in (None, r["ranks"])
            same_point = same_work(backend, Point(**r["point"]), point)
            if r["backend"] == backend and same_ranks and same_point:
                found: dict[str, Any] = r
                return found
        raise KeyError(f"{backend} at {point} with {ranks} ranks was not measured")

    def ms(self, backend: str, point: Point, ranks: int | None = None) -> float:
        return 1e3 * float(self.of(backend, point, ranks)["median_s"])


def at_most(rows: Rows, figure: str, measured: float, target: float) -> None:
    rows.append((figure, f"<= {target:g}", measured, measured <= target))


def at_least(rows: Rows, figure: str, measured: float, target: float) -> None:
    rows.append((figure, f">= {target:g}", measured, measured >= target))


def four_hosts(rows: Rows) -> None:
    run = Run("hosts4-1gbit")
    for point in run.points():
        d = point.density
        target = 1.1 if d >= 0.1 else 1.3 if d == 0.01 else 2
        for backend in ("omnihvd", "omnihvd-dedicated"):
            over = run.of(backend, point)["over_limit"]
            at_most(rows, f"{backend}, {d:.1%} non-zero: time over the limit", over, target)
    for d, target in ((1.0, 1.0), (0.1, 4.0), (0.01, 25.0)):
        (point,) = run.points(density=d)
        ratio = run.ms("gloo", point) / run.ms("omnihvd", point)
        at_least(rows, f"omnihvd, {d:.1%} non-zero: times as fast as Gloo", ratio, target)
    (dense,) = run.points(density=1.0)
    ratio = run.ms("gloo", dense) / run.ms("omnihvd-dedicated", dense)
    at_least(rows, "omnihvd-dedicated, dense: times as fast as Gloo", ratio, 1.4)


def more_hosts(rows: Rows) -> None:
    run = Run("hosts8-500mbit")
    (dense,) = run.points()
    ratio = run.ms("gloo", dense) / run.ms("omnihvd-dedicated", dense)
    at_least(
        rows, "omnihvd-dedicated, dense, 8 hosts at 500 Mbit/s: times as fast as Gloo", ratio, 1.6
    )
    run = Run("workers")
    (dense,) = run.points()
    growth = run.ms("omnihvd-dedicated", dense, 8) / run.ms("omnihvd-dedicated", dense, 2)
    at_most(rows, "omnihvd-dedicated, dense: time of 8 workers over that of 2", growth, 1.1)


def patterns(rows: Rows) -> None:
    run = Run("hosts4-patterns")
    for point in run.points(pattern="zipf"):
        sent = [c["bytes_sent"] for c in run.of("omnihvd", point)["counters"]]
        share = max(sent) / (sum(sent) / len(sent))
        figure = (
            f"omnihvd, zipf, {point.density:.1%}: bytes at the busiest aggregator over the mean"
        )
        at_most(rows, figure, share, 1.1)
    elements = Run("hosts4-elements")
    point = elements.points(density=0.05)[0]
    result = elements.of("omnihvd-dedicated", point)
    sent = max(c["bytes_sent"] for c in result["counters"])
    figure = "element-wise 5%: bytes sent over (4 bytes a value + 1 bit an element)"
    at_most(rows, figure, sent / (point.count * (4 * point.density + 1 / 8)), 1.1)
    (same,) = run.points(pattern="identical", density=0.1)
    over = run.of("omnihvd", same)["over_limit"]
    at_most(rows, "omnihvd, identical, 10.0%: time over the limit", over, 1.15)
    over = elements.of("omnihvd", point)["over_limit"]
    at_most(rows, "omnihvd, elements, 5.0%: time over the limit", over, 1.25)
    for peer in AG.split():
        for r in (Run("hosts4-1gbit"), run, elements):
            for point in r.points():
                if point.density > 0.1:
                    continue
                best = min(r.ms("omnihvd", point), r.ms("omnihvd-dedicated", point))
                figure = f"{point.pattern}, {point.density:.1%}: times as fast as {peer}"
                at_least(rows, figure, r.ms(peer, point) / best, 2)


def one_host(rows: Rows) -> None:
    run = Run("host1")
    (dense,), (sparse,) = run.points(density=1.0), run.points(density=0.01)
    best = min(run.ms(b, dense) for b in ("gloo", "horovod"))
    at_least(
        rows, "one host, dense: times as fast as the best peer", best / run.ms("omnihvd", dense), 1
    )
    at_least(
        rows, "one host, 1%: times as fast as the best peer", best / run.ms("omnihvd", sparse), 5
    )
    read = 1e3 * run.of("omnihvd", sparse)["read_s"]
    figure = "one host, 1%: time over that in which all ranks read their tensors"
    at_most(rows, figure, run.ms("omnihvd", sparse) / read, 3)
    for name, run in (("one host", Run("host1-small")), ("4 hosts", Run("hosts4-small"))):
        for point in run.points():
            ratio = run.ms("omnihvd", point) / run.ms("horovod", point)
            figure = f"{name}, {point.bytes / 1e3:g} kB, {point.density:.0%}: time over Horovod's"
            at_most(rows, figure, ratio, 1.1)


def training(rows: Rows) -> None:
    results = json.loads((RESULTS / "training.json").read_text())["results"]
    for peer, target in (("none", 5.0), ("fp16", 3.0)):
        ratio = results[peer]["median_s"] / results["omnireduce"]["median_s"]
        at_least(rows, f"language model, a step: times as fast as {peer}", ratio, target)
    share = json.loads((RESULTS / "idle.json").read_text())["engine_share_of_a_core"]
    at_most(rows, "engine threads' share of a core while a job computes", share, 0.01)


def predictions(rows: Rows) -> None:
    for r in json.loads((RESULTS / "predictions.json").read_text())["results"]:
        figure = f"{r['model']}, {r['rate']}, {r['scheme']}: a step predicted, off by"
        at_most(rows, figure, abs(r["off"]), 0.15)


def simulation(rows: Rows) -> None:
    times = json.loads((RESULTS / "simulation.json").read_text())["times"]
    off = [abs(time["error"]) for time in times if time["predicted"]]
    figure = "simulated sums beside those of the lab: off by"
    at_most(rows, f"{figure}, on average", sum(off) / len(off), 0.03)
    at_most(rows, f"{figure}, at most", max(off), 0.08)


def minutes(name: str) -> float:
    """About how long it takes, on 2 cores."""
    if name in OTHERS:
        return OTHERS[name]
    args = command.parser().parse_args(BENCH[name].split())
    points = {backend: command.points_of(backend, args) for backend in args.backends}
    return duration.seconds(points, args) / 60


def measure(name: str) -> None:
    RESULTS.mkdir(exist_ok=True)
    output = RESULTS / f"{name}.json"
    python = [sys.executable]
    env = {**mpirun_env(2), "PYTHONPATH": str(ROOT)}
    if name == "training":
        program = str(ROOT / "benchmarks" / "training.py")
        command = [*python, program, "--output", str(output)]
        subprocess.run(command, check=True, env=env)
    elif name == "predictions":
        program = str(ROOT / "benchmarks" / "predictions.py")
        subprocess.run([*python, program, "--output", str(output)], check=True, env=env)
    elif name == "simulation":
        program = str(ROOT / "benchmarks" / "simulation.py")
        subprocess.run([*python, program], check=True, env=env)
    elif name == "idle":
        program = str(ROOT / "benchmarks" / "idle.py")
        job = ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", "2", *python, program]
        done = subprocess.run(job, check=True, env=env, stdout=subprocess.PIPE, text=True)
        output.write_text(done.stdout.strip().splitlines()[-1] + "\n")
    else:
        # Relative, since the results tell their command.
        folder = RESULTS.relative_to(ROOT)
        outputs = ["--json", f"{folder}/{name}.json", "--plots", str(folder)]
        command = [*python, "-m", "benchmarks.bench", *BENCH[name].split(), *outputs]
        subprocess.run(command, check=True, env=env, cwd=ROOT)


def conditions(name: str) -> str:
    """The conditions that a table's reader must know."""
    results = Run(name).results
    ranks, cores = max(r["ranks"] for r in results), os.cpu_count() or 1
    said = [f"{ranks} ranks share {cores} cores"] if ranks > cores else []
    said += [f"TCP: {name}" for name in {r.get("congestion_control") for r in results} if name]
    return ("; " + ", ".join(said)) if said else ""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [*BENCH, *OTHERS]
    parser.add_argument("--only", nargs="*", choices=names, default=names)
    args = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("hosts with shaped links need root")
    print(f"this takes about {sum(map(minutes, args.only)):.0f} minutes; --only NAME takes less")
    for name in args.only:
        print(f"== {name}: about {minutes(name):.0f} minutes", flush=True)
        measure(name)
    rows: Rows = []
    for part in (four_hosts, more_hosts, patterns, one_host, training, predictions, simulation):
        part(rows)
    table = [[figure, t, f"{m:.3g}", "yes" if met else "no"] for figure, t, m, met in rows]
    text = "# Targets\n\n" + markdown(["figure", "target", "measured", "met"], table) + "\n"
    for name in BENCH:
        header, cells = columns(Run(name).results)
        text += f"\n## {name}\n\n`python -m benchmarks.bench {BENCH[name]}`{conditions(name)}\n\n"
        text += f"{markdown(header, cells)}\n"
    (RESULTS / "targets.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
