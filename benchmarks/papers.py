"""Beside the peers of OmniReduce's paper: SwitchML*, SparCML and Parallax, on one network.

    sudo python benchmarks/papers.py [--only PART ...] [--missing]

100 MB of float32 on 4 hosts at 1 and 10 Gbit/s, of which a share of the blocks (256 elements) is
non-zero at random, each sum verified. A part is a rate and a share, such as 1gbit-10%: all take
turns there, and each peer is in the fastest of its settings (omnihvd/bench/settings.py): SparCML's
algorithms, Parallax's servers with few or many partitions, or MPI's allreduce. After each part,
results/papers.json has its raw samples, the bytes that ranks sent and the settings that were tried;
papers.png is drawn of all parts. A part takes two minutes.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from omnihvd.bench.backends import Hosts  # noqa: E402
from omnihvd.bench.command import machine  # noqa: E402
from omnihvd.bench.patterns import Point  # noqa: E402
from omnihvd.bench.plots import plain_numbers, rate_text  # noqa: E402
from omnihvd.bench.report import DENSE, summarize  # noqa: E402
from omnihvd.bench.turns import Plan, measure  # noqa: E402

RESULTS = Path(__file__).parent / "results"
RATES = ("1gbit", "10gbit")
DENSITIES = (1.0, 0.6, 0.4, 0.1, 0.01)
COUNT, HOSTS = 25_000_000, 4
OURS = ("omnihvd-dedicated", "omnihvd")
PEERS = ("switchml", "parallax", "sparcml-rows", "sparcml")
PLAN = Plan(min_runs=9, max_seconds=5, rounds=3)
PARTS = {f"{rate}-{100 * d:g}%": (rate, d) for rate in RATES for d in DENSITIES}


def backends_of(density: float) -> list[str]:
    """What sends all takes the same time whatever is in it, and is measured where nothing is zero;
    where nothing is zero an index an element or a row is the same, as nobody has any."""
    return [
        b
        for b in (*OURS, *PEERS)
        if density == 1.0 or b not in DENSE
        if not (density == 1.0 and b == "sparcml-rows")
    ]


def measure_part(rate: str, density: float) -> dict[str, Any]:
    network = Hosts(HOSTS, rate, dedicated=True)
    try:
        link, congestion = network.link_rate(seconds=1), network.congestion_control()
        points = {b: [Point(COUNT, density)] for b in backends_of(density)}
        answers = measure(network, points, PLAN)
    finally:
        network.close()
    about = {**machine(), "congestion_control": congestion}
    return {"about": about, "results": [summarize(a, HOSTS, link) for a in answers]}


def times(parts: dict[str, Any], rate: str, density: float) -> dict[str, dict[str, Any]]:
    """Results of all backends, those of dense ones and of equal ones from where they were had."""
    dense = {r["backend"]: r for r in parts[f"{rate}-100%"]["results"]}
    dense["sparcml-rows"] = dense["sparcml"]
    found = dense if density == 1.0 else {b: dense[b] for b in (*OURS, *PEERS) if b in DENSE}
    here = parts[f"{rate}-{100 * density:g}%"]["results"]
    return {**found, **{r["backend"]: r for r in here}}


def plot(content: dict[str, Any], path: Path) -> None:
    """Time against density, a panel for each rate."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    from omnihvd.bench.plots import line

    figure, panels = pyplot.subplots(1, len(RATES), figsize=(10.4, 4.6), layout="constrained")
    for axes, rate in zip(panels, RATES):
        found = {d: times(content["parts"], rate, d) for d in sorted(DENSITIES)}
        for backend in (*OURS, *PEERS):
            ys = [1e3 * float(found[d][backend]["median_s"]) for d in found]
            line(axes, backend, list(found), ys)
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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", metavar="PART", default=["*"], help="or patterns")
    parser.add_argument("--missing", action="store_true", help="only parts without results")
    parser.add_argument("--output", type=Path, default=RESULTS / "papers.json")
    args = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("hosts with links need root")
    chosen = [p for p in PARTS if any(fnmatch.fnmatch(p, wanted) for wanted in args.only)]
    if not chosen:
        parser.error(f"no part is called {' '.join(args.only)}: {' '.join(PARTS)}")
    have = json.loads(args.output.read_text())["parts"] if args.output.exists() else {}
    for name in chosen:
        if args.missing and name in have:
            continue
        have[name] = measure_part(*PARTS[name])
        for r in have[name]["results"]:
            text = f"{1e3 * r['median_s']:.1f} ms, {r['over_limit']:.2f} times the limit"
            print(f"{name} {r['backend']} ({r['setting']}): {text}", flush=True)
        args.output.parent.mkdir(parents=True, exist_ok=True)
        args.output.write_text(json.dumps({"parts": have}) + "\n")
    if set(have) == set(PARTS):
        plot({"parts": have}, args.output.with_suffix(".png"))


if __name__ == "__main__":
    main()
