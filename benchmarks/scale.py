"""Simulated sums of up to 4,096 ranks: results/scale.json. Minutes, no root.

python benchmarks/scale.py [--speed]

--speed: in place of that, seconds: how many events are simulated in a second of one core:
results/scale_speed.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from omnihvd.bench.command import machine  # noqa: E402
from omnihvd.bench.patterns import Point  # noqa: E402
from omnihvd.rates import rate_bytes  # noqa: E402
from omnihvd.simulate.command import fans  # noqa: E402
from omnihvd.simulate.model import PAYLOAD, Network, simulate  # noqa: E402

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

# Ranks, density, pattern, levels, elements.
FAST = (
    (8, 1.0, "random", ONE, COUNT // 4),
    (64, 0.01, "random", ONE, COUNT),
    (64, 0.01, "identical", ONE, COUNT),
    (256, 0.01, "identical", AUTO, COUNT),
)


def speed() -> None:
    results = []
    for ranks, density, pattern, levels, count in FAST:
        joined = fans(list(levels), ranks)
        begin = time.process_time()
        outcome = simulate(ranks, Point(count, density, pattern), NETWORK, fans=joined)
        took = time.process_time() - begin
        about = {"ranks": ranks, "levels": joined, "density": density, "pattern": pattern}
        results.append({**about, "events": outcome["events"], "processor_s": round(took, 3)})
        print(about, f"{outcome['events'] / took:,.0f} events a second")
    content = {"about": machine(), "results": results}
    SPEED.write_text(json.dumps(content, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--speed", action="store_true")
    if parser.parse_args().speed:
        speed()
        return
    results = []
    for density, pattern, aggregators, levels, sizes in SUMS:
        point = Point(COUNT, density, pattern)
        for ranks in sizes:
            joined = fans(list(levels), ranks)
            outcome = simulate(ranks, point, NETWORK, dedicated=aggregators, fans=joined)
            del outcome["done_s"]
            print(
                ranks, aggregators, joined, pattern, density, f"{1e3 * outcome['seconds']:.1f} ms"
            )
            about = {"ranks": ranks, "aggregators": aggregators, "levels": joined}
            about["point"] = asdict(point)
            results.append({**about, **outcome})
    RESULT.write_text(json.dumps({"about": machine(), "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
