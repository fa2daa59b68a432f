"""Beside the peers of OmniReduce's paper: SwitchML*, SparCML and Parallax, on one network.

    sudo python benchmarks/papers.py [--only RATE ...] [--backends NAME ...] [--workers]

Sums are of 100 MB of float32 on 4 hosts at 1 and 10 Gbit/s, with a random share of non-zero blocks
(256 elements). Each sum is verified. All backends take turns at each share, and each peer has its
fastest setting there (bench/settings.py): SparCML's algorithms, Parallax's servers with few
or many partitions, or MPI's allreduce. After each rate, results/papers.json has its raw samples,
the bytes that ranks sent and the settings that were tried, and papers.png is drawn. --backends
measures some again, and leaves the others' results. Both rates take twenty minutes, and 20 GB.
--workers: in place of that, 25 MB on 2 and 4 hosts at 500 Mbit/s, where two cores are no limit;
also Gloo, Horovod and an allgather of what is sparse: results/papers_workers.json. 15 minutes. The
ranks of all backends live side by side: those of 8 hosts need more than 24 GB.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from benchmarks.bench.backends import Hosts  # noqa: E402
from benchmarks.bench.command import machine  # noqa: E402
from benchmarks.bench.plots import plain_numbers, rate_text  # noqa: E402
from benchmarks.bench.report import DENSE, summarize  # noqa: E402
from benchmarks.bench.turns import Plan, measure  # noqa: E402
from omnihvd.bench.patterns import Point  # noqa: E402

RESULTS = Path(__file__).parent / "results"
RATES = ("1gbit", "10gbit")
DENSITIES = (1.0, 0.6, 0.1, 0.01)
COUNT, HOSTS = 25_000_000, 4
OURS = ("omnihvd-dedicated", "omnihvd")
PEERS = ("switchml", "parallax", "sparcml-rows", "sparcml", "sparcml-of-dense")
ALL = (*OURS, *PEERS)
PLAN = Plan(min_runs=9, max_seconds=3, rounds=3)
WORKERS, THEIR_RATE, THEIR_COUNT = (2, 4), "500mbit", 6_250_000
LIBRARIES = ("gloo", "horovod", "agsparse")


def points_of(backend: str, count: int = COUNT) -> list[Point]:
    """A backend's points. Dense schemes take the same time at all shares. Without zeros, indices of
    elements and of rows are alike: nobody sends any. Nobody allgathers what is hardly sparse."""
    points = [Point(count, density) for density in DENSITIES]
    if backend in DENSE:
        return points[:1]
    if backend == "agsparse":
        return points[2:]
    return points[1:] if backend == "sparcml-rows" else points


def measure_at(
    rate: str, backends: Sequence[str], hosts: int = HOSTS, count: int = COUNT
) -> dict[str, Any]:
    network = Hosts(hosts, rate, dedicated=True)
    try:
        link, congestion = network.link_rate(seconds=1), network.congestion_control()
        answers = measure(network, {b: points_of(b, count) for b in backends}, PLAN)
    finally:
        network.close()
    about = {**machine(), "congestion_control": congestion}
    return {"about": about, "results": [summarize(a, hosts, link) for a in answers]}


def measure_workers(output: Path) -> None:
    parts = {}
    for hosts in WORKERS:
        found = measure_at(THEIR_RATE, (*ALL, *LIBRARIES), hosts, THEIR_COUNT)
        parts[str(hosts)] = found
        say(f"{hosts} hosts", found)
        write(parts, output)


def write(parts: dict[str, Any], output: Path) -> None:
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps({"parts": parts}) + "\n")


def say(where: str, found: dict[str, Any]) -> None:
    for r in found["results"]:
        text = f"{1e3 * r['median_s']:.1f} ms, {r['over_limit']:.2f} times the limit"
        point = f"{100 * r['point']['density']:g}% {r['backend']} ({r['setting']})"
        print(f"{where} {point}: {text}", flush=True)


def by_density(results: list[dict[str, Any]]) -> dict[float, dict[str, dict[str, Any]]]:
    """Results of all backends by share; a dense one's stands at each, and SparCML's for that of
    rows where nothing is zero."""
    found: dict[float, dict[str, dict[str, Any]]] = {d: {} for d in DENSITIES}
    for r in results:
        density = r["point"]["density"]
        for d in DENSITIES if r["backend"] in DENSE else (density,):
            found[d][r["backend"]] = r
    if "sparcml" in found[1.0]:
        found[1.0]["sparcml-rows"] = found[1.0]["sparcml"]
    return {d: there for d, there in found.items() if set(OURS) <= set(there)}


def plot(content: dict[str, Any], path: Path) -> None:
    """Time against density, a panel for each rate."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    from benchmarks.bench.plots import line

    rates = [rate for rate in RATES if rate in content["parts"]]
    size = {"figsize": (5.2 * len(rates), 4.6)}
    figure, (panels,) = pyplot.subplots(1, len(rates), squeeze=False, layout="constrained", **size)
    for axes, rate in zip(panels, rates):
        found = dict(sorted(by_density(content["parts"][rate]["results"]).items()))
        for backend in (*OURS, *PEERS):
            ms = {d: 1e3 * f[backend]["median_s"] for d, f in found.items() if backend in f}
            line(axes, backend, list(ms), list(ms.values()))
        axes.set(xscale="log", yscale="log", xlabel="non-zero blocks", title=rate_text(rate))
        axes.set_xticks(list(found), [f"{100 * d:g}%" for d in found])
        axes.set_xticks([], minor=True)
        axes.grid(alpha=0.3)
        plain_numbers(axes)
    panels[0].set_ylabel("time, ms")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8)
    figure.suptitle(f"allreduce of 100 MB of float32, random non-zero blocks\n{HOSTS} hosts")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def measure_rates(rates: Sequence[str], backends: Sequence[str], output: Path) -> None:
    have = json.loads(output.read_text())["parts"] if output.exists() else {}
    for rate in rates:
        found = measure_at(rate, backends)
        before = have.get(rate, {}).get("results", [])
        kept = [r for r in before if r["backend"] not in backends]
        have[rate] = {**found, "results": [*kept, *found["results"]]}
        say(rate, found)
        write(have, output)
        plot({"parts": have}, output.with_suffix(".png"))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", metavar="RATE", default=RATES, choices=RATES)
    parser.add_argument("--backends", nargs="+", metavar="NAME", default=ALL, choices=ALL)
    parser.add_argument("--workers", action="store_true")
    parser.add_argument("--output", type=Path, default=RESULTS / "papers.json")
    args = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("hosts with links need root")
    if args.workers:
        measure_workers(args.output.with_name(f"{args.output.stem}_workers.json"))
    else:
        measure_rates(args.only, args.backends, args.output)


if __name__ == "__main__":
    main()
