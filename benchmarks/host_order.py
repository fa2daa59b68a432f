"""Compress first, or sum inside a host first? Bytes, time and quality of both orders.

    sudo python benchmarks/host_order.py [--steps 80]

NCF on MovieLens-100K (examples/models; recbole has the data) on 2 hosts of 2 ranks whose links are
shaped, and on 1 host of 4, by codecs and compressors, with OMNIHVD_COMPRESS_FIRST=1 and 0. Writes
results/host_order.json: of each the median step of the second half, bytes sent by a host and step,
and what is held out after all steps, of each seed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from omnihvd.bench.command import machine  # noqa: E402
from omnihvd.bench.lab import Lab  # noqa: E402

WORKER = ROOT / "examples" / "models" / "worker.py"
RESULT = Path(__file__).parent / "results" / "host_order.json"
LAYOUTS = {"2 x 2": (2, 2), "1 x 4": (1, 4)}  # hosts, ranks of each
METHODS = ["omnireduce", "codec", "natural", "block_topk", "topk"]


def train(layout: str, first: str, given: dict[str, Any], rate: str) -> list[dict[str, Any]]:
    hosts, ranks = LAYOUTS[layout]
    with tempfile.TemporaryDirectory() as folder, Lab(hosts, rate=rate) as lab:
        file = Path(folder) / "found.json"
        lab.mpirun(
            [sys.executable, "-W", "ignore", str(WORKER), json.dumps({**given, "file": str(file)})],
            ranks_per_host=ranks,
            env={
                "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
                "PATH": os.environ["PATH"],
                "OMNIHVD_COMPRESS_FIRST": first,
                "OMNIHVD_WAY": "stream" if hosts > 1 else "shared",
                "OMNIHVD_MIN_BYTES": "1024",
            },
            timeout=600,
        )
        found: list[dict[str, Any]] = json.loads(file.read_text())
        return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layout", nargs="+", choices=list(LAYOUTS), default=list(LAYOUTS))
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rate", default="1gbit", help="of each link, each way")
    parser.add_argument("--output", type=Path, default=RESULT)
    args = parser.parse_args()
    content: dict[str, Any] = {"results": []}
    if args.output.exists():
        content = json.loads(args.output.read_text())
    given = {"model": "ncf", "methods": METHODS, "seeds": list(range(args.seeds)), "points": 1}
    given |= {"steps": args.steps, "warm_up": args.steps // 2}
    for layout in args.layout:
        for first in ("1", "0"):
            found = train(layout, first, given, args.rate)
            kept = [r for r in content["results"] if (r["layout"], r["first"]) != (layout, first)]
            for method in METHODS:
                entries = [entry for entry in found if entry["method"] == method]
                kept.append({"layout": layout, "first": first, "method": method})
                kept[-1]["step_s"] = statistics.median(entry["step_s"] for entry in entries)
                kept[-1]["bytes"] = statistics.mean(entry["bytes"] for entry in entries)
                kept[-1]["ends"] = [entry["curve"][-1][1] for entry in entries]
                print(kept[-1], flush=True)
            content = {**machine(), "rate": args.rate, "steps": args.steps, "results": kept}
            args.output.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
