"""Tables of aggregators in the data path."""

from __future__ import annotations

from typing import Any

from benchmarks.bench.report import markdown
from benchmarks.tables.results import load

DENSE = (0.0, True)
COLUMNS = (DENSE, (0.0, False), (0.4, False), (0.9, False), (0.99, False))


def of(
    plane: str,
    what: tuple[float, bool] = DENSE,
    arithmetic: str = "integer",
    joined: bool = False,
) -> dict[str, Any]:
    """The point of a share of zeros; of all blocks, zero or not, if dense."""
    for point in load("inline.json")["points"]:
        found = point["plane"], (point["zeros"], point["dense"])
        if (*found, point["arithmetic"], point["joined"]) == (plane, what, arithmetic, joined):
            return dict(point)
    raise KeyError(f"inline.json has no {plane} of {arithmetic} at {what}")


def inline() -> str:
    rows = {(p["plane"], p["arithmetic"], p["joined"]): None for p in load("inline.json")["points"]}
    cells = []
    for plane, arithmetic, joined in rows:
        points = [of(plane, what, arithmetic, joined) for what in COLUMNS]
        cells.append([f"{plane}{', joined' * joined}", arithmetic])
        cells[-1] += [f"{1e3 * point['median']:.1f}" for point in points]
        cells[-1] += [f"{points[0]['ns_per_element']:.2f}", f"{1e3 * points[0]['machine_s']:.0f}"]
    heads = [f"{100 * zeros:g}%" for zeros, _ in COLUMNS[1:]]
    ends = ["ns an element", "machine"]
    return markdown(["aggregator", "adds", "dense", *heads, *ends], cells)
