"""The accuracy of `python -m simulator`: its times beside measured ones.

    sudo python benchmarks/simulation.py [--again]

Sums are streamed (OMNIHVD_WAY=stream) in the lab. Processor costs are fitted on some of the
networks, by the least mean error of the simulated times; the other networks are predicted. Writes
results/simulation.json: times, costs, errors. --again: without measuring, from the times there.
`python -m simulator` has these costs (simulator/model.py, MEASURED).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from benchmarks.bench.backends import Hosts  # noqa: E402
from benchmarks.bench.command import machine  # noqa: E402
from benchmarks.bench.turns import Plan, measure  # noqa: E402
from omnihvd.bench.patterns import Point  # noqa: E402
from simulator.model import Costs, Network, simulate  # noqa: E402

RESULT = Path(__file__).parent / "results" / "simulation.json"
# Hosts and rates: from the first, costs are found; the others are predicted.
KNOWN = ((2, "10gbit"), (4, "10gbit"), (2, "1gbit"))
PREDICTED = ((2, "5gbit"), (4, "1gbit"), (4, "2.5gbit"), (8, "500mbit"))
SIZES, DENSITIES = (10_000_000, 100_000_000), (1.0, 0.4, 0.1, 0.01)
PLAN = Plan(min_runs=9, max_seconds=4, rounds=2)
DELAY_S = 20e-6  # of a message through the lab's switch
FIRST = Costs(message_s=1.5e-5, byte_s=2e-10, inspected_s=1e-10, begin_s=4e-5)
STEPS = (1.5, 1 / 1.5, 1.15, 1 / 1.15, 1.04, 1 / 1.04)  # by which costs are varied


def measured(hosts: int, rate: str) -> list[dict[str, Any]]:
    network = Hosts(hosts, rate)
    try:
        link = network.link_rate()
        points = [Point(size // 4, density) for size in SIZES for density in DENSITIES]
        answers = measure(network, {"omnihvd-torch": points}, PLAN)
    finally:
        network.close()
    found = []
    for answer in answers:
        seconds = statistics.median(answer["samples"])
        print(f"{hosts} hosts, {rate}: {answer['point']['density']:g} {1e3 * seconds:.1f} ms")
        point = {name: answer["point"][name] for name in ("count", "density")}
        found.append({"hosts": hosts, "rate": rate, "link": link, **point, "seconds": seconds})
    return found


def simulated(time: dict[str, Any], costs: Costs) -> float:
    network = Network(time["link"], DELAY_S, cores=os.cpu_count() or 1, streams=1)
    point = Point(time["count"], time["density"])
    return float(simulate(time["hosts"], point, network, costs=costs)["seconds"])


def errors(times: list[dict[str, Any]], costs: Costs) -> list[float]:
    return [simulated(time, costs) / time["seconds"] - 1 for time in times]


def fitted(times: list[dict[str, Any]]) -> Costs:
    """One cost after another, by ever smaller steps, as long as that lessens the mean error."""

    def score(costs: Costs) -> float:
        return statistics.fmean(map(abs, errors(times, costs)))

    best, least = FIRST, score(FIRST)
    improved = True
    while improved:
        improved = False
        for name in Costs._fields:
            for step in STEPS:
                tried = best._replace(**{name: getattr(best, name) * step})
                if (now := score(tried)) < 0.995 * least:
                    best, least, improved = tried, now, True
    return Costs(*(float(f"{cost:.2g}") for cost in best))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--again", action="store_true", help="without measuring")
    if parser.parse_args().again:
        content = json.loads(RESULT.read_text())
    else:
        os.environ["OMNIHVD_WAY"] = "stream"
        times = [time for network in (*KNOWN, *PREDICTED) for time in measured(*network)]
        content = {"about": machine(), "times": times}
    known = [time for time in content["times"] if (time["hosts"], time["rate"]) in KNOWN]
    costs = fitted(known)
    for time, error in zip(content["times"], errors(content["times"], costs)):
        time["predicted"] = (time["hosts"], time["rate"]) in PREDICTED
        time["error"] = round(error, 4)
    content["costs"] = costs._asdict()
    RESULT.write_text(json.dumps(content, indent=1) + "\n")
    off = [abs(time["error"]) for time in content["times"] if time["predicted"]]
    print(costs)
    print(f"predicted: off by {statistics.fmean(off):.1%} on average, {max(off):.1%} at most")


if __name__ == "__main__":
    main()
