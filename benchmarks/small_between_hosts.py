"""Small dense sums between hosts under torch.distributed, beside Gloo's.

    sudo python benchmarks/small_between_hosts.py [--rounds 3]

Each round has new jobs of both, which take turns (benchmarks/bench/turns.py), since two jobs alike
may differ by a factor. Gloo's sums take half a millisecond, or three: the median says which of the
two is more frequent, the mean says how long a training waits. Writes
results/small_between_hosts.json with both, in seconds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from benchmarks.bench.backends import Hosts  # noqa: E402
from benchmarks.bench.command import machine  # noqa: E402
from benchmarks.bench.turns import Plan, measure  # noqa: E402
from omnihvd.bench.patterns import Point  # noqa: E402

RESULT = Path(__file__).parent / "results" / "small_between_hosts.json"
NETWORKS = ((2, "10gbit"), (2, "1gbit"), (4, "10gbit"), (4, "1gbit"), (8, "500mbit"))  # hosts, rate
SIZES = (1 << 10, 8 << 10, 64 << 10, 255 << 10)
BACKENDS = ("gloo", "omnihvd-torch")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3, help="of jobs")
    args = parser.parse_args()
    plan = Plan(small_runs=100 * args.rounds, max_seconds=1.5, rounds=args.rounds, new_jobs=True)
    points = [Point(size // 4, 1.0) for size in SIZES]
    results = []
    for hosts, rate in NETWORKS:
        network = Hosts(hosts, rate)
        try:
            answers = measure(network, dict.fromkeys(BACKENDS, points), plan)
        finally:
            network.close()
        for answer in answers:
            of, samples = Point(**answer["point"]), answer["samples"]
            entry = {"hosts": hosts, "rate": rate, "bytes": of.bytes, "backend": answer["backend"]}
            entry |= {"setting": answer["setting"], "samples": len(samples)}
            entry |= {"median_s": statistics.median(samples), "mean_s": statistics.fmean(samples)}
            results.append(entry)
            print(entry, flush=True)
    RESULT.write_text(json.dumps({**machine(), "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
