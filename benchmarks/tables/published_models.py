"""Tables of docs/published.md about the six models: what other schemes would need for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.bench.report import markdown
from benchmarks.tables.models import RATES, results
from benchmarks.tables.results import in_ms, load  # adds compared's folder
from omnihvd.bench.patterns import BLOCK

from compared import ALONE, WAYS  # isort: skip

ITEM = 4  # bytes of a float32


def links_s(result: dict[str, Any]) -> dict[str, float]:
    """Seconds by scheme in which the links carry the values of a simulated sum, without indices.
    P: bytes in a rank's non-zero blocks, U: in any rank's, S: of the tensor."""
    ranks, point = result["ranks"], result["point"]
    whole, others = ITEM * point["count"], (ranks - 1) / ranks
    part, union = point["density"] * whole, float(ITEM * BLOCK * result["union_blocks"])
    rate = 2 * others * whole / result["ring_s"]  # bytes a second
    times = {"ring": 2 * others * whole, "agsparse": (ranks - 1) * part}
    times |= {"parallax": others * (part + union), "switchml": float(whole)}
    return {scheme: bytes_ / rate for scheme, bytes_ in times.items()}


def schemes() -> str:
    """At 1 Gbit/s; at other rates links take in proportion."""
    heads = ["ms", "dense ring", "AGsparse", "Parallax", "SwitchML*, aggregators of their own"]
    cells = []
    for found in load("masks-1gbit.json")["results"]:
        times = [*links_s(found).values(), found["seconds"]]
        cells.append([Path(found["point"]["pattern"]).stem, *map(in_ms, times)])
    return markdown([*heads, "OmniReduce, simulated"], cells)


def arithmetic() -> str:
    """Steps of the models by integers (examples/models/run.py --only arithmetic)."""
    cells, ways = [], ALONE["arithmetic"]
    for name, content in results("links").items():
        for rate, said in RATES.items():
            methods = content["links"].get(rate, {}).get("methods", {})
            if all(way in methods for way in ways):
                ours, theirs = (methods[way]["step_s"] for way in ways)
                cells.append([f"{name}, {said}", in_ms(theirs), in_ms(ours)])
                cells[-1].append(f"{theirs / ours:.2f}")
    ours, theirs = (WAYS[way].title for way in ways)
    return markdown(["ms a step", theirs, ours, "times as fast"], cells)
