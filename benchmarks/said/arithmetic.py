"""What is said of sums in other numbers than floats."""

from __future__ import annotations

from benchmarks.said.results import load
from omnihvd.bench.report import markdown


def errors() -> str:
    found = load("arithmetic.json")["errors"]
    kinds = [*next(iter(found.values()))]
    rows = [[name, *(f"{row[kind]:.1e}" for kind in kinds)] for name, row in found.items()]
    return markdown(["error", *kinds], rows)
