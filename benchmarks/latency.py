"""Where the time of a small or nearly empty sum goes: the parts of a streamed sum, from its trace.

    sudo python benchmarks/latency.py [--networks 1gbit-4 10gbit-2 ...] [--samples 60]

Sums of 256 KiB and 1 MB, dense and 1% non-zero, and of 100 MB with 0.1%, under torch.distributed
and under Horovod, all streamed (OMNIHVD_WAY=stream). Medians of rank 0's sums, in milliseconds:

  framework  the slowest rank's call without omnihvd's part: Horovod's negotiation, Python
  to engine  from the call to the engine's thread
  look       the engine looks for non-zero blocks and sends its first messages
  first      from the end of that to the first result
  rounds     from then to the last result
  back       until the call returns

Writes results/latency.md. A network is RATE-HOSTS, with a rank on each host.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from benchmarks.bench.backends import Hosts  # noqa: E402
from benchmarks.bench.command import machine  # noqa: E402
from benchmarks.bench.report import markdown, size_text, summarize  # noqa: E402
from benchmarks.bench.worker import Visit  # noqa: E402
from omnihvd.bench.patterns import Point  # noqa: E402
from omnihvd.observe import traces  # noqa: E402

RESULT = Path(__file__).parent / "results" / "latency.md"
POINTS = [
    *(Point(size // 4, density) for size in (262_144, 1_000_000) for density in (1.0, 0.01)),
    Point(25_000_000, 0.001),
]
PARTS = ("to engine", "look", "first", "rounds", "back")
BACKENDS = ("omnihvd-torch", "omnihvd")
NETWORKS = ("10gbit-2", "1gbit-4")


def parts_of(trace: list[dict[str, Any]], sums: int) -> dict[str, float]:
    """Medians, in milliseconds, over the last so many streamed sums."""
    spans = [(e["name"], e["ts"], e["ts"] + e["dur"]) for e in trace if e.get("ph") == "X"]
    found: dict[str, list[float]] = {part: [] for part in PARTS}
    for _, begin, end in sorted(s for s in spans if s[0] == "stream")[-sums:]:
        inside = [s for s in spans if begin <= s[2] <= end]
        looks = [s for s in inside if s[0] == "inspect"]
        results = sorted(s[2] for s in inside if s[0] == "round")
        if not looks or not results:
            continue
        looked = max(s[2] for s in looks)
        first = max(looked, results[0])
        marks = (begin, min(s[1] for s in looks), looked, first, max(first, results[-1]), end)
        for part, earlier, later in zip(PARTS, marks, marks[1:]):
            found[part].append((later - earlier) / 1e3)
    return {part: statistics.median(times) for part, times in found.items()}


def row(network: Hosts, backend: str, point: Point, samples: int, link: float) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        env = {"OMNIHVD_WAY": "stream", "OMNIHVD_MIN_BYTES": "1", "OMNIHVD_TRACE": str(trace)}
        with network.start(backend, env=env) as session:
            answer = session.visit(Visit(point, is_first=True, min_runs=samples))
        parts = parts_of(traces.read(trace), len(answer["samples"]))
    result = summarize({"backend": backend, **answer}, network.count, link)
    whole = 1e3 * result["median_s"]
    parts = {"framework": whole - sum(parts.values()), **parts}
    return [
        *(backend, size_text(point.bytes), f"{point.density:.1%}", f"{whole:.2f}"),
        *(f"{ms:.2f}" for ms in parts.values()),
        f"{1e3 * result['limit_s']:.2f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), metavar="RATE-HOSTS")
    parser.add_argument("--samples", type=int, default=60)
    args = parser.parse_args()
    header = ["", "tensor", "non-zero", "ms", "framework", *PARTS, "limit"]
    about = machine()
    text = "# Where the time of small sums goes\n\n"
    text += f"Made by `benchmarks/latency.py`, {about['date']}, commit {about['commit'][:12]}.\n"
    for name in args.networks:
        rate, hosts = name.split("-")
        network = Hosts(int(hosts), rate)
        try:
            link = network.link_rate(seconds=1)
            rows = [
                row(network, backend, point, args.samples, link)
                for backend in BACKENDS
                for point in POINTS
            ]
        finally:
            network.close()
        text += f"\n## {hosts} hosts, {rate}\n\n{markdown(header, rows)}\n"
        print(text, flush=True)
        RESULT.write_text(text)


if __name__ == "__main__":
    main()
