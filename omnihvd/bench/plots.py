"""Plots of a benchmark's results, in the style of the literature."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omnihvd.bench.report import DENSE


def plot(results: list[dict[str, Any]], folder: Path, name: str) -> list[Path]:
    """Writes the PNG files that the results have the points for; returns their paths.

    Time and speed-up over Gloo against density, and time against the number of workers. Needs
    matplotlib.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    written = []
    for pattern in dict.fromkeys(r["point"]["pattern"] for r in results):
        here = [r for r in results if r["point"]["pattern"] == pattern]
        by = _series(here, lambda r: 100 * r["point"]["density"])
        densities = sorted({x for series in by.values() for x, _ in series})
        if len(densities) < 2:
            continue
        for backend in (b for b in DENSE if b in by):
            by[backend] = [(x, by[backend][0][1]) for x in densities]
        figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4))
        for backend, series in by.items():
            left.plot(*zip(*series), marker="o", label=backend)
            if "gloo" in by and backend != "gloo":
                gloo = dict(by["gloo"])
                shared = [(x, gloo[x] / y) for x, y in series if x in gloo]
                if shared:
                    right.plot(*zip(*shared), marker="o", label=backend)
        for axes, title in ((left, "time, ms"), (right, "times as fast as Gloo")):
            axes.set(xscale="log", yscale="log", xlabel="non-zero, %", title=title)
            axes.grid(alpha=0.3)
            axes.legend()
        figure.suptitle(f"allreduce, {here[0]['ranks']} ranks, pattern: {pattern}")
        written.append(_save(figure, folder / f"{name}-{pattern}.png"))
    dense = [r for r in results if r["point"]["density"] == 1]
    by = _series(dense, lambda r: r["ranks"])
    if max((len(s) for s in by.values()), default=0) >= 2:
        figure, axes = pyplot.subplots(figsize=(5, 4))
        for backend, series in by.items():
            axes.plot(*zip(*series), marker="o", label=backend)
        axes.set(xlabel="workers", ylabel="ms", title="dense allreduce", ylim=(0, None))
        axes.grid(alpha=0.3)
        axes.legend()
        written.append(_save(figure, folder / f"{name}-workers.png"))
    return written


def _series(results: list[dict[str, Any]], x: Any) -> dict[str, list[tuple[float, float]]]:
    by: dict[str, list[tuple[float, float]]] = {}
    for r in results:
        by.setdefault(r["backend"], []).append((x(r), 1e3 * r["median_s"]))
    return {backend: sorted(dict(series).items()) for backend, series in by.items()}


def _save(figure: Any, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    return path
