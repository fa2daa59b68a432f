"""Beside the peers of OmniReduce's paper: SwitchML*, SparCML and Parallax, on one network.

    sudo python benchmarks/papers.py [--only RATE ...] [--backends NAME ...]
    sudo python benchmarks/papers.py --workers [--hosts N ...] [--backends NAME ...]

Sums are of 100 MB of float32 on 4 hosts at 1 and 10 Gbit/s, with a random share of non-zero blocks
(256 elements). Each sum is verified. All backends take turns at each share, and each peer has its
fastest setting there (bench/settings.py): SparCML's algorithms, Parallax's servers with few
or many partitions, or MPI's allreduce. After each rate, results/papers.json has its raw samples,
the bytes that ranks sent and the settings that were tried, and papers.png is drawn. --backends
measures some again, and leaves the others' results. Both rates take twenty minutes, and 20 GB.
--workers: in place of that, 25 MB on 2 and 4 hosts at 500 Mbit/s, where two cores are no limit;
also Gloo, Horovod and an allgather of what is sparse: results/papers_workers.json and its .png. 15
minutes. The ranks of all backends live side by side: those of all peers on 8 hosts need more than
24 GB. So --backends names a group of them, and others keep their results. Each group has omnihvd
beside it, and each peer is compared with omnihvd's time in its own run.
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
from benchmarks import stamps  # noqa: E402
from benchmarks.bench.backends import Hosts  # noqa: E402
from benchmarks.bench.command import machine  # noqa: E402
from benchmarks.bench.plots import plain_numbers, rate_text  # noqa: E402
from benchmarks.bench.reducers import DEDICATED  # noqa: E402
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
Found = dict[str, dict[str, Any]]  # results of backends at one share


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


def measure_workers(workers: Sequence[int], backends: Sequence[str], output: Path) -> None:
    parts = json.loads(output.read_text())["parts"] if output.exists() else {}
    peers = [b for b in backends if b not in OURS]
    for hosts in workers:
        found = measure_at(THEIR_RATE, (*OURS, *peers), hosts, THEIR_COUNT)
        parts[str(hosts)] = merged(parts.get(str(hosts)), found)
        say(f"{hosts} hosts", found)
        parts = dict(sorted(parts.items(), key=lambda part: int(part[0])))
        write(parts, output)
        plot({"parts": parts}, output.with_suffix(".png"))


def merged(before: dict[str, Any] | None, now: dict[str, Any]) -> dict[str, Any]:
    """The newer part, and what the older one has of other backends."""
    measured = {r["backend"] for r in now["results"]}
    kept = [r for r in stamped(before) if r["backend"] not in measured] if before else []
    return {**now, "results": [*kept, *stamped(now)]}


def stamped(part: dict[str, Any]) -> list[dict[str, Any]]:
    """A part's results with what they come from, and omnihvd's times in their run by share."""
    ours: dict[str, dict[str, float]] = {}
    for r in part["results"]:
        if r["backend"] in OURS:
            ours.setdefault(str(r["point"]["density"]), {})[r["backend"]] = r["median_s"]
    return [{"source": part["about"], "beside": ours, **r} for r in part["results"]]


def write(parts: dict[str, Any], output: Path) -> None:
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps({"parts": parts}) + "\n")


def say(where: str, found: dict[str, Any]) -> None:
    for r in found["results"]:
        text = f"{1e3 * r['median_s']:.1f} ms, {r['over_limit']:.2f} times the limit"
        point = f"{100 * r['point']['density']:g}% {r['backend']} ({r['setting']})"
        print(f"{where} {point}: {text}", flush=True)


def by_density(results: list[dict[str, Any]]) -> dict[float, Found]:
    """Results of all backends by share; a dense one's stands at each, and SparCML's for that of
    rows where nothing is zero. `beside`: omnihvd's times at that share in the same run, where the
    results are of several."""
    found: dict[float, Found] = {d: {} for d in DENSITIES}
    for r in results:
        density = r["point"]["density"]
        for d in DENSITIES if r["backend"] in DENSE else (density,):
            found[d][r["backend"]] = {**r, "beside": r.get("beside", {}).get(str(d))}
    if "sparcml" in found[1.0]:
        found[1.0]["sparcml-rows"] = found[1.0]["sparcml"]
    return {d: there for d, there in found.items() if set(OURS) <= set(there)}


def ratio(found: Found, peer: str) -> float:
    """How many times as fast as that peer omnihvd is: the better of its two. Beside a peer with
    hosts for aggregators it has such hosts, too."""
    like = [backend for backend in OURS if backend in DEDICATED] if peer in DEDICATED else OURS
    beside = found[peer].get("beside") or {b: found[b]["median_s"] for b in OURS if b in found}
    return float(found[peer]["median_s"] / min(beside[backend] for backend in like))


def plot(content: dict[str, Any], path: Path) -> None:
    """Against density, a panel for each part: times by rate, or omnihvd's speed-ups by workers."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    from benchmarks.bench.plots import line

    parts = content["parts"]
    titles = {rate: rate_text(rate) for rate in RATES if rate in parts}
    of_times = bool(titles)
    titles = titles or {name: f"{name} workers" for name in parts}
    size = {"figsize": (5.2 * len(titles), 4.6)}
    figure, (panels,) = pyplot.subplots(1, len(titles), squeeze=False, layout="constrained", **size)
    for axes, (part, title) in zip(panels, titles.items()):
        found = dict(sorted(by_density(parts[part]["results"]).items()))
        for backend in (*OURS, *PEERS) if of_times else (*LIBRARIES, *PEERS):
            there = {d: f for d, f in found.items() if backend in f}
            ys = [
                1e3 * f[backend]["median_s"] if of_times else ratio(f, backend)
                for f in there.values()
            ]
            line(axes, backend, list(there), ys)
        axes.set(xscale="log", yscale="log", xlabel="non-zero blocks", title=title)
        axes.set_xticks(list(found), [f"{100 * d:g}%" for d in found])
        axes.set_xticks([], minor=True)
        axes.grid(alpha=0.3)
        plain_numbers(axes)
    panels[0].set_ylabel("time, ms" if of_times else "times as fast as the peer")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8)
    count = COUNT if of_times else THEIR_COUNT
    where = f"{HOSTS} hosts" if of_times else f"omnihvd beside each peer, {rate_text(THEIR_RATE)}"
    what = f"allreduce of {count / 250_000:g} MB of float32, random non-zero blocks"
    figure.suptitle(f"{what}\n{where}")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def measure_rates(rates: Sequence[str], backends: Sequence[str], output: Path) -> None:
    have = json.loads(output.read_text())["parts"] if output.exists() else {}
    for rate in rates:
        found = measure_at(rate, backends)
        before = have.get(rate, {}).get("results", [])
        stamps.hand_down(have.get(rate, {}).get("about", {}), before)
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
    parser.add_argument("--backends", nargs="+", metavar="NAME", choices=(*ALL, *LIBRARIES))
    parser.add_argument("--workers", action="store_true")
    parser.add_argument("--hosts", nargs="+", type=int, default=WORKERS, help="of --workers")
    parser.add_argument("--output", type=Path, default=RESULTS / "papers.json")
    args = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("hosts with links need root")
    if args.workers:
        output = args.output.with_name(f"{args.output.stem}_workers.json")
        measure_workers(args.hosts, args.backends or (*ALL, *LIBRARIES), output)
    else:
        measure_rates(args.only, args.backends or ALL, args.output)


if __name__ == "__main__":
    main()
