"""Block fusion by the size of blocks, as in figure 13 of OmniReduce's paper.

    sudo python benchmarks/fusion.py

Sums of 25 MB of float32 on 2 hosts at 10 Gbit/s under torch.distributed, by streaming. Blocks have
32 to 256 elements. Messages carry one block, or as many as fill 4096 bytes. Zeros are the same for
all: a random share of the runs of 256 elements. All settings take turns at each share, and each sum
is verified before it is timed. Writes results/fusion.json, in about seven minutes.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from benchmarks.bench.backends import Hosts  # noqa: E402
from benchmarks.bench.command import machine  # noqa: E402
from benchmarks.bench.worker import Visit  # noqa: E402
from omnihvd.bench.patterns import Point  # noqa: E402

FILE = Path(__file__).parent / "results" / "fusion.json"
HOSTS, RATE, COUNT, DENSITIES = 2, "10gbit", 6_250_000, (1.0, 0.1, 0.01)
BLOCKS, FUSED, ROUNDS, SECONDS, RUNS = (32, 64, 128, 256), 4096, 3, 0.33, 3


def measure(network: Hosts) -> list[dict[str, Any]]:
    results = []
    with contextlib.ExitStack() as stack:
        for block in BLOCKS:
            for message in (4 * block, FUSED):
                env = {"OMNIHVD_BLOCK_SIZE": str(block), "OMNIHVD_MESSAGE_BYTES": str(message)}
                env["OMNIHVD_WAY"] = "stream"
                session = stack.enter_context(network.start("omnihvd-torch", env=env))
                for point in (Point(COUNT, density) for density in DENSITIES):
                    session.visit(Visit(point, True))
                    about = {"block": block, "message_bytes": message, "density": point.density}
                    results.append((session, point, {**about, "samples": []}))
        for _ in range(ROUNDS):
            for session, point, result in results:
                found = session.visit(Visit(point, False, SECONDS, RUNS))
                result["samples"] += found["samples"]
                result["counters"] = found["counters"]
    return [{**r, "median_s": statistics.median(r["samples"])} for *_, r in results]


def main() -> None:
    with contextlib.closing(Hosts(HOSTS, RATE)) as network:
        results = measure(network)
    about = {**machine(), "hosts": HOSTS, "rate": RATE, "count": COUNT}
    FILE.write_text(json.dumps({**about, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
