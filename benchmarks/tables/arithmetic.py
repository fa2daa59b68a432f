"""Tables of sums in other numbers than floats."""

from __future__ import annotations

import statistics

from benchmarks.bench.report import markdown
from benchmarks.tables.results import in_ms, load
from omnihvd.rates import rate_text

MODES = ("float", "integer", "switchml", "fpisa", "fpisa-a")
GB = 0.1  # of the tensor


def errors() -> str:
    found = load("arithmetic.json")["errors"]
    kinds = [*next(iter(found.values()))]
    rows = [[name, *(f"{row[kind]:.1e}" for kind in kinds)] for name, row in found.items()]
    return markdown(["error", *kinds], rows)


def times() -> str:
    """Milliseconds; in brackets the MB that a host sends, and all ranks' processor seconds a GB."""
    found = load("arithmetic.json")["times"]
    kinds = [*(kind for kind in next(iter(found.values())) if kind in MODES)]
    rows = []
    for rate, modes in found.items():
        for density in modes["float"]:
            row = [f"{rate_text(rate)}, {float(density):.0%}"]
            for kind in kinds:
                one = modes[kind][density]
                ms, sent = in_ms(statistics.median(one["samples"])), one["bytes_sent"] / 1e6
                row.append(f"{ms} ({sent:.0f}, {one['cpu_s'] / GB:.1f})")
            rows.append(row)
    return markdown(["ms (MB, s/GB)", *kinds], rows)
