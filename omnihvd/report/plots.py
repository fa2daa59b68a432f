"""The report's plots, by matplotlib, from what is in report.json."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from omnihvd.report.predictions import rate_text, time_text

BLUE, RED, GREY = "#0072B2", "#D55E00", "#999999"
COLORS = {
    "ring": RED,
    "fp16": "#E69F00",
    "omnireduce": BLUE,
    "dedicated": "#56B4E9",
    "union": "#009E73",
    "rows": "#CC79A7",
    "allgather": GREY,
    "block_topk": "#F0E442",
}


def svg(draw: Any, content: dict[str, Any]) -> str:
    """One of the plots below, to stand in a page. ImportError without matplotlib."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.hashsalt": "omnihvd", "svg.fonttype": "none"}):
        figure = Figure(figsize=(9, 3.6), layout="constrained")
        draw(figure, content)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()[text.getvalue().index("<svg") :]


def picture(content: dict[str, Any], path: Path) -> None:
    """Densities and steps side by side, as the file's ending says. ImportError as above."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.8), layout="constrained")
    panels: Any = figure.subfigures(1, 2)
    left, right = panels
    densities(left, content)
    steps(right, content)
    figure.savefig(path, dpi=90)


def densities(figure: Any, content: dict[str, Any]) -> None:
    axes = figure.subplots()
    sizes = list(content["total"]["density"])
    largest = sorted(content["parameters"], key=lambda p: -p["bytes"])[:4]
    for p in largest:
        axes.plot(sizes, [100 * p["density"][b] for b in sizes], "-", alpha=0.6, label=p["name"])
    total = content["total"]
    for share, style, color, label in (
        ("density", "o-", BLUE, "all, a rank"),
        ("union", "s--", RED, f"all, any of {content['of_ranks']} ranks"),
    ):
        axes.plot(sizes, [100 * total[share][b] for b in sizes], style, color=color, label=label)
    axes.set(xlabel="elements of a block", ylabel="% of the blocks not zero", ylim=(0, None))
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)


def steps(figure: Any, content: dict[str, Any]) -> None:
    all_ranks = list(dict.fromkeys(p["ranks"] for p in content["predictions"]))
    for axes, ranks in zip(figure.subplots(1, len(all_ranks), squeeze=False)[0], all_ranks):
        mine = [p for p in content["predictions"] if p["ranks"] == ranks]
        rates = list(dict.fromkeys(p["rate"] for p in mine))
        shown = [s for s in COLORS if any(p["scheme"] == s for p in mine)]
        width = 0.8 / len(shown)
        for i, scheme in enumerate(shown):
            steps = {p["rate"]: p["step_s"] for p in mine if p["scheme"] == scheme}
            at = [x - 0.4 + (i + 0.5) * width for x in range(len(rates))]
            axes.bar(at, [steps[r] for r in rates], width, color=COLORS[scheme], label=scheme)
        axes.axhline(content["timing"]["alone"], color="black", linestyle=":", linewidth=1)
        axes.set_xticks(range(len(rates)), [rate_text(r) for r in rates], fontsize=8)
        axes.set(title=f"{ranks} hosts", yscale="log")
        for axis in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
            axis(lambda value, _: time_text(value))
        axes.tick_params(axis="y", which="both", labelsize=8)
    figure.axes[0].set_ylabel("a step (dotted: computing)")
    figure.axes[0].legend(fontsize=7)


def development(figure: Any, content: dict[str, Any]) -> None:
    axes = figure.subplots()
    steps = content["development"]
    axes.plot([s["step"] for s in steps], [100 * s["density"] for s in steps], "o-", color=BLUE)
    axes.set(xlabel="step", ylabel="% of the blocks not zero, a rank", ylim=(0, None))
    axes.grid(alpha=0.3)
