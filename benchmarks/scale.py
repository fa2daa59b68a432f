"""Simulated sums of up to 4,096 ranks: results/scale.json. Minutes, no root.

python benchmarks/scale.py [--speed | --rates]

--speed: in place of that, a minute or two: how many events are simulated in a second of one core:
results/scale_speed.json. --rates: the tensors, workers and shares of OmniReduce's figure 4 at 10,
25 and 100 Gbit/s: results/scale_rates.json.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from benchmarks.bench.command import machine  # noqa: E402
from omnihvd.bench.patterns import Point  # noqa: E402
from omnihvd.rates import rate_bytes  # noqa: E402
from simulator.command import fans  # noqa: E402
from simulator.model import PAYLOAD, Network, simulate  # noqa: E402

RESULT = Path(__file__).parent / "results" / "scale.json"
NETWORK = Network(PAYLOAD * rate_bytes("100gbit"), 5e-6)
SPEED = Path(__file__).parent / "results" / "scale_speed.json"
COUNT = 25_000_000
# Density, pattern, aggregators (0: the ranks), levels (--levels), ranks.
ONE, AUTO = (), ("auto",)
SUMS = (
    (1.0, "random", 0, ONE, (2, 8, 64)),
    (1.0, "random", 0, ("8", "8"), (64,)),
    (0.01, "random", 0, ONE, (2, 8, 64, 256)),
    (0.01, "identical", 0, ONE, (2, 8, 64, 256)),
    (0.01, "identical", 64, ONE, (64, 256, 1024, 4096)),
    (0.01, "identical", 0, ("8", "8"), (64,)),
    (0.01, "identical", 0, AUTO, (256, 1024, 4096)),
)

RATES = Path(__file__).parent / "results" / "scale_rates.json"

# Ranks, density, pattern, levels, elements.
FAST = (
    (8, 1.0, "random", ONE, COUNT // 4),
    (64, 0.01, "random", ONE, COUNT),
    (64, 0.01, "identical", ONE, COUNT),
    (256, 0.01, "identical", AUTO, COUNT),
    (4096, 0.01, "identical", AUTO, COUNT),
    (1024, 1.0, "random", AUTO, COUNT // 10),
)


def one_of_speed(one: tuple[int, float, str, tuple[str, ...], int]) -> dict[str, Any]:
    ranks, density, pattern, levels, count = one
    joined = fans(list(levels), ranks)
    begin = time.process_time()
    outcome = simulate(ranks, Point(count, density, pattern), NETWORK, fans=joined)
    took = time.process_time() - begin
    about = {"ranks": ranks, "levels": joined, "density": density, "pattern": pattern}
    about |= {"count": count, "events": outcome["events"], "processor_s": round(took, 3)}
    return {**about, "most_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}


def speed() -> None:
    results = []
    with get_context("spawn").Pool(1, maxtasksperchild=1) as pool:  # each has its own memory
        for result in pool.imap(one_of_speed, FAST):
            results.append(result)
            print(result, f"{result['events'] / result['processor_s']:,.0f} events a second")
    content = {"about": machine(), "results": results}
    SPEED.write_text(json.dumps(content, indent=1) + "\n")


def rates() -> None:
    """On hosts of one rank, with as many hosts of an aggregator, and with aggregators on the ranks'
    own hosts."""
    results = []
    for rate in ("10gbit", "25gbit", "100gbit"):
        network = Network(PAYLOAD * rate_bytes(rate), 5e-6)
        for ranks in (2, 4, 8):
            for density in (1.0, 0.4, 0.1, 0.01):
                for aggregators in (ranks, 0):
                    outcome = simulate(ranks, Point(COUNT, density), network, dedicated=aggregators)
                    about = {"rate": rate, "ranks": ranks, "aggregators": aggregators}
                    about |= {"density": density, "seconds": outcome["seconds"]}
                    results.append({**about, "ring_s": outcome["ring_s"]})
                    print(results[-1], flush=True)
    RATES.write_text(json.dumps({"about": machine(), "results": results}, indent=1) + "\n")


def plot(content: dict[str, Any], path: Path) -> None:
    """Plots the JSON file's results over the number of ranks."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    curves: dict[str, list[tuple[int, float]]] = {}
    ring: dict[int, float] = {}
    for r in content["results"]:
        density, pattern = r["point"]["density"], r["point"]["pattern"]
        what = "100%" if density == 1 else f"{100 * density:g}%, {pattern}"
        where = f"{r['aggregators']} aggregators" if r["aggregators"] else "colocated"
        curves.setdefault(f"{what}: {where}{', levels' * bool(r['levels'])}", []).append(
            (r["ranks"], 1e3 * r["seconds"])
        )
        ring[r["ranks"]] = 1e3 * r["ring_s"]
    figure, axes = pyplot.subplots(figsize=(8, 5), layout="constrained")
    for what, curve in curves.items():
        axes.plot(*zip(*sorted(curve)), "o-", label=what)
    axes.plot(*zip(*sorted(ring.items())), "k:", label="dense ring's links")
    axes.set(xscale="log", yscale="log", xlabel="ranks", ylabel="ms, 100 MB at 100 Gbit/s")
    axes.set_xticks(sorted(ring), list(map(str, sorted(ring))))
    axes.minorticks_off()
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=100)


def sizes() -> None:
    results = []
    for density, pattern, aggregators, levels, of_ranks in SUMS:
        point = Point(COUNT, density, pattern)
        for ranks in of_ranks:
            joined = fans(list(levels), ranks)
            outcome = simulate(ranks, point, NETWORK, dedicated=aggregators, fans=joined)
            del outcome["done_s"]
            print(
                ranks, aggregators, joined, pattern, density, f"{1e3 * outcome['seconds']:.1f} ms"
            )
            about = {"ranks": ranks, "aggregators": aggregators, "levels": joined}
            about["point"] = asdict(point)
            results.append({**about, **outcome})
    content = {"about": machine(), "results": results}
    RESULT.write_text(json.dumps(content, indent=1) + "\n")
    plot(content, RESULT.with_suffix(".png"))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--rates", action="store_true")
    args = parser.parse_args()
    (speed if args.speed else rates if args.rates else sizes)()


if __name__ == "__main__":
    main()
