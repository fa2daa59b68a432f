"""Compress first, or sum inside a host first? Bytes, time and quality of both orders.

    sudo python benchmarks/host_order.py [--part links quality] [--layout 2x2 2x4]

NCF (examples/models: MovieLens-100K where recbole is installed, else drawn; the result says which)
on two hosts of 2 and of 4 ranks, by codecs and compressors, with OMNIHVD_COMPRESS_FIRST=1 and 0.

links    40 steps on links of --rate: the median step of the second half, in seconds, and bytes that
         a host sends in a step, all headers included
quality  80 steps of each seed, on unshaped links: AUC of the held-out data, at the end

Writes results/host_order.json, a layout and order at a time; what is there is measured again only
with --again.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "examples" / "models")]
import model_jobs  # noqa: E402
import ncf  # noqa: E402
from compared import ORDERED  # noqa: E402

from benchmarks import stamps  # noqa: E402
from benchmarks.bench.lab import Lab  # noqa: E402
from benchmarks.bench.source import source  # noqa: E402

RESULT = Path(__file__).parent / "results" / "host_order.json"
HOSTS = 2
LAYOUTS = {"2x2": 2, "2x4": 4}  # ranks of each host
ORDERS = {"1": "each rank", "0": "each host"}  # what compresses, by OMNIHVD_COMPRESS_FIRST
ENV = {"OMNIHVD_WAY": "stream", "OMNIHVD_MIN_BYTES": "1024"}
PARTS = {"links": {"steps": 40, "warm_up": 20}, "quality": {"steps": 80, "points": 1}}


def train(layout: str, first: str, given: dict[str, Any], rate: str | None) -> list[dict[str, Any]]:
    ranks = LAYOUTS[layout]
    with Lab(HOSTS, rate=rate, share_cores=True) as lab:
        return model_jobs.run(
            {"model": "ncf", "methods": ORDERED, **given},
            *(HOSTS * ranks, lambda *_: None),
            **{"lab": lab, "per_host": ranks, "env": {**ENV, "OMNIHVD_COMPRESS_FIRST": first}},
        )


def measure(part: str, layout: str, first: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """An entry of each method, and each seed of quality."""
    quality = part == "quality"
    given = {**PARTS[part], "seeds": list(range(args.seeds if quality else 1))}
    entries, about = [], source()
    for entry in train(layout, first, given, None if quality else args.rate):
        kept = {**about, "part": part, "layout": layout, "first": first, "method": entry["method"]}
        if quality:
            kept |= {"seed": entry["seed"], "steps": entry["steps"], "end": entry["curve"][-1][1]}
        else:
            kept |= {"rate": args.rate, "step_s": entry["step_s"], "bytes": entry["bytes"]}
        entries.append(kept)
    return entries


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--layout", nargs="+", choices=list(LAYOUTS), default=list(LAYOUTS))
    parser.add_argument("--seeds", type=int, default=3, help="of quality")
    parser.add_argument("--rate", default="1gbit", help="of each link, each way")
    parser.add_argument("--again", action="store_true", help="also what there is already")
    args = parser.parse_args()
    results = stamps.kept(RESULT)
    for part in args.part:
        for layout in args.layout:
            for first in ORDERS:
                this = {"part": part, "layout": layout, "first": first}
                others = [r for r in results if any(r[key] != this[key] for key in this)]
                if len(others) < len(results) and not args.again:
                    continue
                results = others + measure(part, layout, first, args)
                content = {**stamps.facts(), "source": ncf.Ncf(None, "default").source}
                content["results"] = results
                RESULT.write_text(json.dumps(content, indent=1) + "\n")
                for entry in results[len(others) :]:
                    print(entry, flush=True)


if __name__ == "__main__":
    main()
