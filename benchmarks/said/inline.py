"""What is said of aggregators in the data path."""

from __future__ import annotations

from typing import Any

from benchmarks.said.results import Said, load
from omnihvd.bench.report import markdown

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


def ratio(name: str, more: dict[str, Any], less: dict[str, Any]) -> float:
    return float(more[name] / less[name])


def of_inline() -> list[Said]:
    socket, xdp, af_xdp = (of(plane) for plane in ("socket", "xdp", "af-xdp"))
    less = [f"{ratio('aggregator_s', socket, plane):.1f}" for plane in (xdp, af_xdp)]
    sparse = [
        f"{ratio('median', of(plane), of(plane, what)):.2f}"
        for plane in ("socket", "xdp", "af-xdp")
        for what in COLUMNS[2:]
    ]
    runs = of("socket", joined=True)

    def one(template: str, *figures: str) -> Said:
        return Said("docs/in-network.md", "inline.json", template, list(figures))

    return [
        one("the XDP program and its process take {} times less than the socket's", less[0]),
        one("Those of AF_XDP take {} times less", less[1]),
        one(
            "works {}% less for a dense sum by XDP than by the socket, and {}% less by AF_XDP",
            *(f"{100 - 100 / ratio('machine_s', socket, p):.0f}" for p in (xdp, af_xdp)),
        ),
        one(
            "sums by XDP and AF_XDP take {} and {} of the socket's time",
            *(f"{ratio('median', plane, socket):.2f}" for plane in (xdp, af_xdp)),
        ),
        one("the socket {}, {} and {} times as fast", *sparse[:3]),
        one("XDP {}, {} and {} times,", *sparse[3:6]),
        one("AF_XDP {}, {} and {} times.", *sparse[6:]),
        one(
            "the program takes {} times as long for FPISA's registers as for integers",
            f"{ratio('aggregator_s', of('xdp', arithmetic='fpisa'), xdp):.1f}",
        ),
        one(
            "the socket is {} times as fast as frame by frame",
            f"{ratio('median', socket, runs):.1f}",
        ),
    ]
