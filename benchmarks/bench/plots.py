"""Plots of a benchmark's results, in the style of the literature."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.bench.report import DENSE, size_text
from omnihvd import rates
from omnihvd.bench.patterns import Point


class Style(NamedTuple):
    """A backend's style, the same in all plots. Markers are hollow, and lines of peers that often
    coincide differ in width and dashes, so that covered lines show."""

    label: str
    color: str
    marker: str
    line: Any = "-"
    width: float = 1.6


STYLES = {
    "omnihvd": Style("omnihvd", "#0072B2", "o"),
    "omnihvd-dedicated": Style("omnihvd, dedicated aggregators", "#E69F00", "s"),
    "omnihvd-torch": Style("omnihvd (torch.distributed)", "#56B4E9", "D"),
    "omnihvd-natural": Style("omnihvd, natural compression", "#332288", "P"),
    "omnihvd-torch-natural": Style("the same (torch.distributed)", "#882255", "X"),
    "gloo": Style("Gloo", "#999999", "", "-", 4.5),
    "gloo-again": Style("another job of Gloo's", "#777777", "", (0, (2, 4)), 3),
    "horovod": Style("Horovod (Open MPI)", "#D55E00", "", (0, (6, 2)), 1.8),
    "mpi": Style("MPI (Open MPI)", "#661100", "", (0, (2, 2)), 1.8),
    "mpich": Style("MPI (MPICH)", "#DDCC77", "", (0, (4, 1)), 3),
    "omnihvd-rows": Style("omnihvd, lists of rows", "#004488", "h"),
    "omnihvd-torch-rows": Style("the same (torch.distributed)", "#BB5566", "d"),
    "agsparse": Style("allgather, sparse from the start", "#CC79A7", "^"),
    "agsparse-of-dense": Style("allgather of a dense tensor", "#009E73", "v"),
    "switchml": Style("SwitchML*", "#117733", "", (0, (3, 1, 1, 1)), 2.2),
    "sparcml": Style("SparCML", "#AA4499", "<"),
    "sparcml-rows": Style("SparCML, an index a row", "#88CCEE", ">"),
    "sparcml-of-dense": Style("SparCML of a dense tensor, an index a row", "#44AA99", "<"),
    "parallax": Style("Parallax", "#000000", "h"),
    "omnihvd-torch-scatter": Style("omnihvd's reduce-scatter", "#6699CC", "p"),
    "gloo-scatter": Style("Gloo's reduce-scatter", "#BBBBBB", "", (0, (5, 1)), 3),
    "mpi-scatter": Style("MPI's reduce-scatter (Open MPI)", "#997700", "", (0, (1, 1)), 1.8),
}


def line(axes: Any, backend: str, xs: list[float], ys: list[float]) -> None:
    style = STYLES[backend]
    axes.plot(
        *(xs, ys),
        **{"color": style.color, "linestyle": style.line, "linewidth": style.width},
        **{"marker": style.marker, "markersize": 7, "markerfacecolor": "none"},
        **{"label": style.label, "zorder": 2 if backend in DENSE else 3},
    )


def level(axes: Any, backend: str, y: float) -> None:
    """Draws a dense scheme; its time does not depend on the zeros."""
    style = STYLES[backend]
    axes.axhline(
        y,
        **{"color": style.color, "linestyle": style.line, "linewidth": style.width},
        **{"label": style.label, "zorder": 2},
    )


def rate_text(rate: str | None) -> str:
    """The rate as text."""
    return f"links of {rates.rate_text(rate)}" if rate and rate != "none" else "unshaped links"


def hosts_text(ranks: int, per_host: int, rate: str | None) -> str:
    hosts = ranks // per_host
    if hosts == 1:
        return f"{ranks} ranks on one host"
    each = f", {per_host} ranks on each" if per_host > 1 else ""
    return f"{hosts} hosts{each}, {rate_text(rate)}"


def plot(
    results: list[dict[str, Any]], folder: Path, name: str, rate: str | None, local: bool = False
) -> list[Path]:
    """Writes the PNG files that the results have the points for; returns their paths.

    Time, and speed-up over Gloo, against density; where there are several sizes of tensors, time
    against size; where there are several numbers of workers, time against that. rate: of the links,
    as for tc. local: all ranks were on one host. Needs matplotlib.
    """
    written = []
    for r in results:  # older results do not say
        r.setdefault("ranks_per_host", r["ranks"] if local else 1)
    networks = dict.fromkeys((r["ranks"], r["ranks_per_host"]) for r in results)
    if len(networks) > 1:
        dense = [r for r in results if r["point"]["density"] == 1]
        return [_workers(dense, folder / f"{name}-workers.png", rate)] if dense else []
    kinds = dict.fromkeys((p.pattern, p.memory) for p in (Point(**r["point"]) for r in results))
    for pattern, memory in kinds:
        here = [
            r
            for r in results
            if (r["point"]["pattern"], r["point"].get("memory", "kept")) == (pattern, memory)
        ]
        path = folder / f"{name}-{pattern}{'-new' * (memory == 'new')}.png"
        points = [Point(**r["point"]) for r in here]
        if len({point.count for point in points}) > 1:
            written.append(_sizes(here, path, rate))
        elif len({point.density for point in points}) > 1:
            written.append(_densities(here, path, rate))
    return written


def _densities(results: list[dict[str, Any]], path: Path, rate: str | None) -> Path:
    ms = _series(results, lambda r: r["point"]["density"])
    gloo = next(iter(ms["gloo"].values())) if "gloo" in ms else None
    figure, (left, *right) = _axes(1 if gloo is None else 2)
    left.set(title="time, ms")
    for axes in right:
        axes.set(title="times as fast as Gloo")
    for axes, value in ((left, lambda y: y), *((axes, lambda y: gloo / y) for axes in right)):
        for backend in _in_order(ms):
            if backend in DENSE:
                level(axes, backend, value(next(iter(ms[backend].values()))))
            else:
                line(axes, backend, list(ms[backend]), [value(y) for y in ms[backend].values()])
        axes.set(xscale="log", yscale="log", xlabel=_share_of(results[0]["point"]["pattern"]))
        ticks = sorted({x for backend in ms for x in ms[backend]})
        _ticks(axes, ticks, [f"{100 * x:g}%" for x in ticks])
    return _save(figure, left, path, _title(results, rate))


def _sizes(results: list[dict[str, Any]], path: Path, rate: str | None) -> Path:
    """Draws time against size: a panel for each density."""
    densities = sorted({r["point"]["density"] for r in results}, reverse=True)
    figure, all_axes = _axes(len(densities))
    for axes, density in zip(all_axes, densities):
        same = [r for r in results if r["backend"] in DENSE or r["point"]["density"] == density]
        ms = _series(same, lambda r: Point(**r["point"]).bytes)
        for backend in _in_order(ms):
            line(axes, backend, list(ms[backend]), list(ms[backend].values()))
        axes.set(xscale="log", yscale="log", xlabel="tensor")
        ticks = sorted({x for backend in ms for x in ms[backend]})
        _ticks(axes, ticks, [size_text(int(x)) for x in ticks])
        axes.set(title=f"time, ms; {100 * density:g}% non-zero")
    return _save(figure, all_axes[0], path, _title(results, rate))


def _workers(dense: list[dict[str, Any]], path: Path, rate: str | None) -> Path:
    figure, (axes,) = _axes(1)
    ms = _series(dense, lambda r: r["ranks"])
    for backend in _in_order(ms):
        line(axes, backend, list(ms[backend]), list(ms[backend].values()))
    ticks = sorted({r["ranks"] for r in dense})
    _ticks(axes, ticks, [str(x) for x in ticks])
    axes.set(xlabel="workers, one a host", title="time, ms; nothing is zero", ylim=(0, None))
    point = Point(**dense[0]["point"])
    return _save(
        figure, axes, path, f"{size_text(point.bytes)} of {point.dtype}, {rate_text(rate)}"
    )


def _share_of(pattern: str) -> str:
    return "non-zero elements" if pattern == "elements" else "non-zero blocks"


def _title(results: list[dict[str, Any]], rate: str | None) -> str:
    point = Point(**results[0]["point"])
    sizes = {Point(**r["point"]).bytes for r in results}
    what = f"{size_text(point.bytes)} of {point.dtype}" if len(sizes) == 1 else point.dtype
    where = hosts_text(results[0]["ranks"], results[0]["ranks_per_host"], rate)
    kind = _share_of(point.pattern)
    where_zero = kind if point.pattern == "elements" else f"{point.pattern} {kind}"
    return f"allreduce of {what}, {where_zero}\n{where}"


def _series(results: list[dict[str, Any]], x: Any) -> dict[str, dict[float, float]]:
    """By backend: x -> ms, with x ascending."""
    by: dict[str, dict[float, float]] = {}
    for r in sorted(results, key=x):
        by.setdefault(r["backend"], {})[x(r)] = 1e3 * r["median_s"]
    return by


def _in_order(by: dict[str, Any]) -> list[str]:
    return [backend for backend in STYLES if backend in by]


def _ticks(axes: Any, ticks: list[float], labels: list[str]) -> None:
    """Sets the ticks of x. Call it after setting the scale, which makes ticks of its own."""
    axes.set_xticks(ticks, labels)
    axes.set_xticks([], minor=True)


def plain_numbers(axes: Any) -> None:
    """Labels a logarithmic y axis with 1, 2, 5, 10, 20, ..."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _axes(columns: int) -> tuple[Any, list[Any]]:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, grid = pyplot.subplots(
        1, columns, figsize=(5.2 * columns, 4.6), squeeze=False, layout="constrained"
    )
    return figure, list(grid[0])


def _save(figure: Any, first: Any, path: Path, title: str) -> Path:
    from matplotlib import pyplot

    for axes in figure.axes:
        axes.grid(alpha=0.3)
        if axes.get_yscale() == "log":
            plain_numbers(axes)
    handles, labels = first.get_legend_handles_labels()
    columns = 2 if len(figure.axes) == 1 else 4
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, fontsize=8)
    figure.suptitle(title, fontsize=11)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return path
