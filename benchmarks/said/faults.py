"""What is said of random jobs over a bad network."""

from __future__ import annotations

from benchmarks.said.results import load
from omnihvd.bench.report import markdown

NAMES = {
    "jobs": "jobs",
    "sums": "sums that ranks had right",
    "unfinished": "sums that a stopped host or a cut network held up",
    "messages": "messages",
    "datagrams": "datagrams and acknowledgements",
    "lost": "of them lost",
    "cut": "lost where the network was cut",
    "twice": "come twice",
    "late": "late, and mostly overtaken",
    "crashes": "hosts that stopped",
    "jumps": "clocks put forward",
}


def campaign() -> str:
    result = load("faults.json")
    cells = [[name, f"{result['counts'][key]:,}"] for key, name in NAMES.items()]
    cells.append(["simulated hours", f"{result['simulated_s'] / 3600:,.0f}"])
    cells.append(["failures", "0" if result["failure"] is None else "1"])
    return markdown(["", "how many"], cells)


def mutations() -> str:
    cells = []
    for r in load("mutations.json")["results"]:
        seed = (
            "none" if r["said"] is None else "the process ends" if r["seed"] is None else r["seed"]
        )
        cells.append([r["bug"], str(seed), r["said"] or ""])
    return markdown(["bug", "first seed that finds it", "what it says"], cells)
