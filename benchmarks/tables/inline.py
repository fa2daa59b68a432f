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
    loss: float = 0.0,
) -> dict[str, Any]:
    """The point of a share of zeros; of all blocks, zero or not, if dense. Older results are
    without loss, and do not say so."""
    wanted = (plane, what, arithmetic, joined, loss)
    for point in load("inline.json")["points"]:
        found = point["plane"], (point["zeros"], point["dense"]), point["arithmetic"]
        if (*found, point["joined"], point.get("loss", 0.0)) == wanted:
            return dict(point)
    raise KeyError(f"inline.json has no {plane} of {arithmetic} at {what}")


def inline() -> str:
    """Without loss. Older results do not have the workers' processor time."""
    there = [p for p in load("inline.json")["points"] if not p.get("loss")]
    rows = {(p["plane"], p["arithmetic"], p["joined"]): None for p in there}
    worker = "worker_s_per_gb"
    cells = []
    for plane, arithmetic, joined in rows:
        points = [of(plane, what, arithmetic, joined) for what in COLUMNS]
        cells.append([f"{plane}{', joined' * joined}", arithmetic])
        cells[-1] += [f"{1e3 * point['median']:.1f}" for point in points]
        cells[-1] += [f"{points[0]['ns_per_element']:.2f}", f"{1e3 * points[0]['machine_s']:.0f}"]
        cells[-1] += [f"{points[0][worker]:.2f}"] if worker in points[0] else []
    heads = [f"{100 * zeros:g}%" for zeros, _ in COLUMNS[1:]]
    ends = ["ns an element", "machine", *(["a worker, s/GB"] if worker in there[0] else [])]
    return markdown(["aggregator", "adds", "dense", *heads, *ends], cells)


def losses() -> str:
    """Integers, where hosts lose frames: milliseconds, and in brackets the share of datagrams that
    workers sent again."""
    rows = {
        (p["loss"], p["plane"]): None
        for p in load("inline.json")["points"]
        if p["arithmetic"] == "integer" and not p["joined"]
    }
    cells = []
    for loss, plane in sorted(rows, key=lambda row: row[0]):
        points = [of(plane, what, loss=loss) for what in COLUMNS]
        again = [point["again"] / max(1, point["sent"]) for point in points]
        cells.append([f"{100 * loss:g}%", plane])
        cells[-1] += [f"{1e3 * p['median']:.1f} ({a:.2%})" for p, a in zip(points, again)]
    heads = [f"{100 * zeros:g}%" for zeros, _ in COLUMNS[1:]]
    return markdown(["frames lost", "aggregator", "dense", *heads], cells)
