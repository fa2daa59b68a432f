"""Tables of sums over networks that lose frames."""

from __future__ import annotations

from benchmarks.bench.report import markdown
from benchmarks.tables.results import load


def loss() -> str:
    cells, names = [], []
    for point in load("loss.json")["points"]:
        found = {n: v for n, v in point.items() if n not in ("density", "joined", "loss")}
        names = [*found]
        share = "none, joined" if point["joined"] else f"{100 * point['loss']:g}%"
        cells.append([f"{100 * point['density']:g}%", share])
        cells[-1] += [f"{1e3 * one['median']:.1f}" for one in found.values()]
        cells[-1].append(f"{100 * found['udp']['again']:.2f}%")
    heads = [name if name == "udp" else f"UCX, {name}" for name in names]
    return markdown(["non-zero", "frames lost", *heads, "sent again by udp"], cells)
