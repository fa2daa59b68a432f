"""Draws what a step of the six models takes, over plain Horovod's: results/models.png, of
results/models/*.json (examples/models/run.py)."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from benchmarks.tables.models import METHODS, RATES, results  # noqa: E402

PICTURE = Path(__file__).parent / "results" / "models.png"
COLOURS = ("#D55E00", "#E69F00", "#0072B2", "#56B4E9", "#009E73")


def plot() -> Path:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    models = results("links")
    figure, rows = pyplot.subplots(2, 1, figsize=(9, 6), sharex=True, layout="constrained")
    for axes, (rate, said) in zip(rows, RATES.items()):
        for i, (method, title) in enumerate(METHODS.items()):
            shares = []
            for content in models.values():
                of = content["links"][rate]["methods"]
                shares.append(of[method]["step_s"] / of["horovod"]["step_s"])
            places = [x + (i - 2) * 0.16 for x in range(len(models))]
            axes.bar(places, shares, 0.16, label=title, color=COLOURS[i])
        axes.axhline(1, color="grey", linewidth=0.8)
        axes.set(ylabel=f"step over plain Horovod's, {said}")
        axes.set_xticks(range(len(models)), list(models))
    bars = rows[0].get_legend_handles_labels()
    figure.legend(*bars, loc="outside lower center", ncols=len(METHODS), fontsize=8)
    figure.suptitle("The paper's six models on 4 hosts that share two cores")
    figure.savefig(PICTURE, dpi=100)
    return PICTURE


if __name__ == "__main__":
    print(plot())
