"""Simulated sums of up to 4,096 ranks: results/scale.json. Minutes, no root.

python benchmarks/scale.py
"""

from __future__ import annotations

import json
import sys
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


def main() -> None:
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
