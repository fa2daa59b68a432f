"""Runs LogGOPSim on simulated sums: results/goal.json. Takes minutes; needs no root.

python benchmarks/goal.py

Needs LogGOPSim and txt2bin (github.com/spcl/LogGOPSim) on PATH.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from benchmarks.bench.command import machine  # noqa: E402
from omnihvd.bench.patterns import Point  # noqa: E402
from omnihvd.rates import rate_bytes  # noqa: E402
from simulator.command import loggopsim  # noqa: E402
from simulator.model import PAYLOAD, Network, simulate  # noqa: E402

RESULT = Path(__file__).parent / "results" / "goal.json"
# Rate, ranks, aggregators (0: the ranks), levels, MB, density.
SUMS = (
    ("1gbit", 4, 0, (), 100, 1.0),
    ("10gbit", 8, 0, (), 100, 0.1),
    ("100gbit", 8, 0, (), 100, 1.0),
    ("100gbit", 64, 0, (), 10, 0.01),
    ("100gbit", 64, 0, (8, 8), 10, 0.01),
    ("100gbit", 64, 16, (), 10, 0.01),
    ("100gbit", 512, 0, (8, 8, 8), 10, 0.01),
)


def seconds(schedule: str, network: Network) -> float:
    """The time until the last host has ended, by LogGOPSim."""
    with tempfile.TemporaryDirectory() as folder:
        goal, binary = f"{folder}/x.goal", f"{folder}/x.bin"
        Path(goal).write_text(schedule)
        command = loggopsim(network).replace("GOAL", goal, 1).replace("BIN", binary)
        command = command.replace("LogGOPSim", "LogGOPSim --batchmode", 1)
        said = subprocess.run(
            command, shell=True, capture_output=True, text=True, check=True
        ).stdout
    found = re.search(r"Maximum finishing time at host \d+: (\d+)", said)
    assert found, said
    return int(found.group(1)) * 1e-12


def main() -> None:
    for tool in ("LogGOPSim", "txt2bin"):
        if not shutil.which(tool):
            raise SystemExit(f"{tool} is not on PATH: build github.com/spcl/LogGOPSim")
    results = []
    for rate, ranks, aggregators, levels, megabytes, density in SUMS:
        network = Network(PAYLOAD * rate_bytes(rate), 5e-6)
        point = Point(megabytes * 250_000, density, "identical")
        ours = simulate(ranks, point, network, dedicated=aggregators, fans=levels, goal=True)
        row = {
            "rate": rate,
            "ranks": ranks,
            "aggregators": aggregators,
            "levels": levels,
            "megabytes": megabytes,
            "density": density,
            "messages": ours["messages"],
            "seconds": ours["seconds"],
            "loggopsim_s": seconds(ours["goal"], network),
        }
        results.append(row)
        print(row, flush=True)
    RESULT.write_text(json.dumps({"about": machine(), "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
