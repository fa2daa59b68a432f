"""What docs/models.md says of the six models (examples/models/run.py, results/models)."""

from __future__ import annotations

from typing import Any

from benchmarks.said.results import RESULTS, load
from omnihvd.bench.report import markdown

PUBLISHED = {"deeplight": 99, "lstm": 94, "ncf": 84, "vgg19": 32, "resnet152": 21, "bert": 9}


def results(part: str) -> dict[str, dict[str, Any]]:
    """Of the models that have that part."""
    there = [name for name in PUBLISHED if (RESULTS / "models" / f"{name}.json").exists()]
    found = {name: load(f"models/{name}.json") for name in there}
    return {name: content for name, content in found.items() if part in content}


def percent(share: float) -> str:
    return f"{100 * share:.1f}%"


def zeros() -> str:
    cells = []
    for name, content in results("zeros").items():
        by_size = {entry["size"]: entry for entry in content["zeros"]}
        here, full = by_size["default"], by_size.get("full")
        cells.append([name, f"{PUBLISHED[name]}%", percent(full["zeros"]) if full else ""])
        cells[-1] += [f"{here['bytes'] / 1e6:.0f}", str(here["batch_size"])]
        shares = ("zeros", "zero_blocks", "sum_zeros", "sum_zero_blocks")
        cells[-1] += [percent(here[share]) for share in shares]
        cells[-1].append(percent(here["table_share"]))
    heads = ["", "published", "full size", "here: MB", "batch", "zeros", "zero blocks"]
    return markdown([*heads, "of the sum", "blocks of it", "in tables"], cells)
