"""Tables of small sums on one host, and of sums of lists of rows."""

from __future__ import annotations

from statistics import median

from benchmarks.bench.report import markdown
from benchmarks.tables.results import in_ms, load


def small_sums() -> str:
    """Medians over the rounds."""
    cells = []
    for r in load("small_sums.json")["results"]:
        engine, ours, gloo = (median(r["us"][kind]) for kind in ("engine", "omnihvd", "gloo"))
        times = (f"{us:.1f}" if us < 100 else f"{us:,.0f}" for us in (engine, ours, gloo))
        cells.append([str(r["ranks"]), f"{r['bytes'] >> 10} KiB", *times, f"{gloo / ours:.0f}"])
    return markdown(
        ["ranks", "tensor", "engine, us", "omnihvd, us", "Gloo, us", "Gloo / ours"], cells
    )


def rows() -> str:
    backends = {
        "omnihvd-torch": "dense tensor",
        "omnihvd-torch-rows": "sparse tensor of torch",
        "omnihvd-rows": "list",
        "sparcml-rows": "SparCML by rows",
    }
    found: dict[float, dict[str, str]] = {}
    for r in load("rows-10gbit.json")["results"]:
        density = r["point"]["density"]
        found.setdefault(density, {})[r["backend"]] = in_ms(median(r["samples"]))
    cells = [[f"{100 * d:g}%", *(ms[name] for name in backends)] for d, ms in found.items()]
    return markdown(["non-zero rows", *backends.values()], cells)
