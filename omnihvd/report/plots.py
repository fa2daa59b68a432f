"""The report's plots, by matplotlib, from report.json."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from omnihvd.rates import rate_text
from omnihvd.report.predictions import LOSSY, SCHEMES, best_of, time_text

SHOWN = ("ring", "omnireduce", "rows", "allgather", "dedicated", "fp16", "block_topk")
BLUE, RED, GREY, LIGHT, LOSES = "#0072B2", "#D55E00", "#BBBBBB", "#9CC9E6", "#F3D9A4"


def svg(draw: Any, content: dict[str, Any], height: float = 3.6) -> str:
    """One of the plots below, as SVG for a page. ImportError without matplotlib."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.hashsalt": "omnihvd", "svg.fonttype": "none"}):
        figure = Figure(figsize=(6.5, height), layout="constrained")
        draw(figure, content)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()[text.getvalue().index("<svg") :]


def picture(content: dict[str, Any], path: Path) -> None:
    """Densities and steps side by side, as the file's ending says. ImportError as above."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, max(3.8, steps_height(content))), layout="constrained")
    panels: Any = figure.subfigures(1, 2, width_ratios=(2, 3))
    left, right = panels
    densities(left, content)
    steps(right, content)
    figure.savefig(path, dpi=90)


def densities(figure: Any, content: dict[str, Any]) -> None:
    axes = figure.subplots()
    sizes = list(content["total"]["density"])
    large = [p for p in content["parameters"] if p["bytes"] >= 0.05 * content["bytes"]]
    for p in sorted(large, key=lambda p: -p["bytes"])[:4]:
        axes.plot(sizes, [100 * p["density"][b] for b in sizes], "-", alpha=0.6, label=p["name"])
    total = content["total"]
    for share, style, color, label in (
        ("density", "o-", BLUE, "all, a rank"),
        ("union", "s--", RED, f"all, any of {content['of_ranks']} ranks"),
    ):
        axes.plot(sizes, [100 * total[share][b] for b in sizes], style, color=color, label=label)
    axes.set(xlabel="elements of a block", ylabel="% of the blocks not zero")
    axes.set_ylim(0, 1.05 * axes.get_ylim()[1])
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)


def _rates(content: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Predictions for the advised number of hosts, by rate: SHOWN and each rate's best scheme."""
    found: dict[str, list[dict[str, Any]]] = {}
    for p in content["predictions"]:
        if p["ranks"] == content["advised_ranks"]:
            found.setdefault(p["rate"], []).append(p)
    shown = {*SHOWN, *map(best_of, found.values())}
    return {rate: [p for p in rows if p["scheme"] in shown] for rate, rows in found.items()}


def steps_height(content: dict[str, Any]) -> float:
    """Inches."""
    return sum(0.5 + 0.24 * len(rows) for rows in _rates(content).values())


def steps(figure: Any, content: dict[str, Any]) -> None:
    """A bar for each scheme, with a step's computing and waiting; a panel for each rate."""
    rates = _rates(content)
    alone = content["timing"]["alone"]
    for axes, (rate, rows) in zip(figure.subplots(len(rates), squeeze=False)[:, 0], rates.items()):
        best = best_of(rows)
        longest = max(p["step_s"] for p in rows)
        for y, p in enumerate(rows):
            computing = min(alone, p["step_s"])
            lossy = LOSES if p["scheme"] in LOSSY else LIGHT
            color = BLUE if p["scheme"] == best else lossy
            axes.barh(y, computing, color=GREY)
            axes.barh(y, p["step_s"] - computing, left=computing, color=color)
            weight = "bold" if p["scheme"] == best else "normal"
            text = f" {time_text(p['step_s'])}"
            axes.text(p["step_s"], y, text, va="center", fontsize=8, weight=weight)
        axes.set_yticks(range(len(rows)), [SCHEMES[p["scheme"]] for p in rows], fontsize=8)
        axes.set(xlim=(0, 1.2 * longest), xticks=[], ylim=(len(rows) - 0.4, -0.6))
        for side in ("top", "right", "bottom"):
            axes.spines[side].set_visible(False)
        axes.set_title(
            f"{content['advised_ranks']} hosts at {rate_text(rate)}: a step (grey: computing)",
            fontsize=9,
            loc="left",
        )


def development(figure: Any, content: dict[str, Any]) -> None:
    from matplotlib.ticker import MaxNLocator

    axes = figure.subplots()
    steps = content["development"]
    axes.plot([s["step"] for s in steps], [100 * s["density"] for s in steps], "o-", color=BLUE)
    axes.set(xlabel="step", ylabel="% of the blocks not zero, a rank")
    axes.set_ylim(0, 1.05 * axes.get_ylim()[1])
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
