"""results/evaluation.md and a plot for each task, of the pieces that there are."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from benchmarks.evaluation import methods
from benchmarks.evaluation.tasks import TASKS

RESULTS = Path(__file__).resolve().parents[1] / "results"
COSTS = RESULTS / "evaluation" / "cost.json"
RATES = ("1gbit", "10gbit")
OPTIMIZERS = {"momentum": "SGD with momentum", "adam": "Adam"}  # parts of run.py
CODECS = (
    *("natural", "int8", "int4", "qsgd 8 bits", "qsgd 4 bits", "terngrad", "sign", "one_bit"),
)
DRAWN = ("none", "fp16", "natural", "sign", "block_topk", "topk", "power_sgd", "dgc")  # as curves

Piece = dict[str, Any]


def file_of(task: str, part: str) -> Path:
    return RESULTS / "evaluation" / f"{task}-{part}.json"


def pieces(task: str, part: str) -> list[Piece]:
    file = file_of(task, part)
    return json.loads(file.read_text()) if file.exists() else []


def save(file: Path, entries: list[Piece]) -> None:
    """A line each."""
    file.write_text("[\n" + ",\n".join(map(json.dumps, entries)) + "\n]\n")


def add(file: Path, entry: Piece) -> None:
    """In place of an older one of the same method and seed."""
    entries = json.loads(file.read_text()) if file.exists() else []
    same = (entry["method"], entry["seed"])
    save(file, [e for e in entries if (e["method"], e["seed"]) != same] + [entry])


def costs() -> list[Piece]:
    return json.loads(COSTS.read_text()) if COSTS.exists() else []


def replaced(entries: list[Piece], new: list[Piece]) -> list[Piece]:
    """Those of the same method by the new ones, which are added otherwise."""
    return [*({e["method"]: e for e in [*entries, *new]}).values()]


def by_method(task: str, part: str) -> dict[str, list[Piece]]:
    found: dict[str, list[Piece]] = {}
    for piece in pieces(task, part):
        found.setdefault(piece["method"], []).append(piece)
    return found


def write() -> None:
    texts = [HEAD]
    for task in TASKS:
        if pieces(task, "quality"):
            texts += [table(task), *payments(task), f"![{task}](evaluation-{task}.png)"]
            plot(task)
    texts += optimizers()
    texts += ["## SIDCo's shares", SIDCO, sidco_table()]
    if costs():
        texts += ["## Costs of methods", COST, cost_table()]
    (RESULTS / "evaluation.md").write_text("\n\n".join(texts) + "\n")


HEAD = """# Compressors on real tasks

Made by `benchmarks/evaluation/run.py`, which says how. Two ranks; 1% where a method has a ratio,
10% where its places are random. Quality: held out, at the end, mean and standard deviation over
seeds; minus none: the same of the difference to no compression with the same seed. kB: sent by a
host in a step, all headers included, on links of 1 Gbit/s (where no times stand: payload). ms: the
median step, computing included, on a machine with two cores for both hosts, in the middle one of
three runs of 30 steps. Compressing: ms of it, where methods select or round in Python. All sums are
streamed, small ones, too, but for "horovod", which is without omnihvd, in the faster of the two
settings of Open MPI that suit it; "fp16" is Horovod's own compression, above omnihvd's sums."""


SIDCO = (
    """Share of the elements that are sent over the ratio asked for, steps 21 to 60, one seed:"""
)


COST = """Processor seconds of one core for 25 M elements of float32; of SIDCo's thresholds alone,
also `torch.topk`'s at the same ratio:"""


def table(task: str) -> str:
    quality, links = by_method(task, "quality"), {rate: by_method(task, rate) for rate in RATES}
    lines = [
        f"## {task}: {TASKS[task].megabytes} MB of gradients, {TASKS[task].steps} steps\n",
        f"| method | {TASKS[task].measure} | minus none | kB | ms at 1 Gbit/s | "
        "ms at 10 Gbit/s | compressing |",
        "|---|---|---|---|---|---|---|",
    ]
    for method in methods.methods(TASKS[task]):
        ours, fast = quality.get(method, []), links["1gbit"].get(method, [])
        if ours or fast:
            cells = [method, _quality(ours), _difference(ours, quality.get("none", []))]
            cells.append(_kilobytes(fast or ours))
            cells += [_ms(links[rate].get(method, []), "step_seconds") for rate in RATES]
            compressing = _ms(fast, "compress_seconds")
            cells.append("in the engine" if method in CODECS else compressing)
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _quality(found: list[Piece]) -> str:
    return _spread(_ends(found)) + " (one seed)" * (len(found) == 1)


def _difference(found: list[Piece], to: list[Piece]) -> str:
    """Seed by seed: seeds differ by more than methods do."""
    base = {piece["seed"]: end for piece, end in zip(to, _ends(to))}
    pairs = [(end, p["seed"]) for p, end in zip(found, _ends(found)) if p["seed"] in base]
    return _spread([end - base[seed] for end, seed in pairs], "+")


def _ends(found: list[Piece]) -> list[float]:
    return [piece["curve"][-1][1] for piece in found]


def _spread(values: list[float], sign: str = "") -> str:
    """The mean and the standard deviation of a sample; of one seed, the value."""
    if len(values) < 2:
        return "".join(f"{value:{sign}.4f}" for value in values)
    return f"{statistics.mean(values):{sign}.4f} ± {statistics.stdev(values):.4f}"


def _kilobytes(found: list[Piece]) -> str:
    # 0 bytes: only a link counts the bytes of sums in parts.
    values = [1e-3 * piece["bytes"] for piece in found if piece["bytes"]]
    return f"{statistics.mean(values):.1f}" if values else ""


def _ms(found: list[Piece], name: str) -> str:
    return f"{1e3 * _middle(found, name):.1f}" if found else ""


def _middle(found: list[Piece], name: str) -> float:
    """Seconds, in the middle one of the runs."""
    return statistics.median(piece[name] for piece in found)


def optimizers() -> list[str]:
    """Quality of the tasks that were trained by more than plain SGD."""
    texts = []
    for task in TASKS:
        found = [by_method(task, part) for part in OPTIMIZERS]
        names = [name for name in methods.methods(TASKS[task]) if any(name in f for f in found)]
        if names:
            lines = [f"| {task}, {TASKS[task].measure} | {' | '.join(OPTIMIZERS.values())} |"]
            lines.append("|---" * (1 + len(found)) + "|")
            for name in names:
                cells = [_quality(f.get(name, [])) for f in found]
                lines.append(f"| {name} | {' | '.join(cells)} |")
            texts += [f"## {task}: four ranks, by optimizer", "\n".join(lines)]
    return texts


def payments(task: str) -> list[str]:
    """The methods that make a step shorter."""
    texts = []
    for rate in RATES:
        times = {
            method: _middle(found, "step_seconds")
            for method, found in by_method(task, rate).items()
        }
        if not {"none", "fp16"} <= times.keys():
            continue
        best = min(times["none"], times["fp16"])
        others = sorted(times.keys() - {"none", "fp16", "horovod"}, key=times.__getitem__)
        faster = [method for method in others if times[method] < 0.95 * best]
        slower = [method for method in others if times[method] > 1.05 * best]
        texts.append(
            f"At {rate[:-4]} Gbit/s a step is at least 5% shorter than with none and with fp16: "
            f"{', '.join(faster) or 'by no method'}. At least 5% longer than with the better of "
            f"them: {', '.join(slower) or 'by no method'}."
        )
    return texts


def sidco_table() -> str:
    found = {task: by_method(task, "sidco") for task in TASKS}
    lines = [f"| distribution, ratio | {' | '.join(TASKS)} |", "|---" * (1 + len(TASKS)) + "|"]
    for name in methods.sidco(None):
        cells = []
        for task in TASKS:
            ours, ratio = found[task].get(name, []), float(name.split()[1])
            shares = [piece["kept_after_20"] / ratio for piece in ours]
            cells.append(f"{shares[0]:.2f}" if shares else "")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def cost_table() -> str:
    lines = ["| method | seconds | torch.topk |", "|---|---|---|"]
    for entry in costs():
        topk = entry.get("torch_topk_seconds")
        share = f"{topk:.3f} ({entry['seconds'] / topk:.0%} of it)" if topk else ""
        lines.append(f"| {entry['method']} | {entry['seconds']:.3f} | {share} |")
    return "\n".join(lines)


def plot(task: str) -> None:
    """Quality against time on links of 1 Gbit/s: at the end, and on the way."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    quality, fast = by_method(task, "quality"), by_method(task, "1gbit")
    both = [method for method in quality if method in fast]
    if not both:
        return
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(13, 5.4), layout="constrained")
    for method in both:
        step = _middle(fast[method], "step_seconds")
        curves = [piece["curve"] for piece in quality[method]]
        ends = _ends(quality[method])
        point = (step * curves[0][-1][0], statistics.mean(ends))
        spread = statistics.stdev(ends) if len(ends) > 1 else 0.0
        left.errorbar(*point, spread, fmt="o", markersize=4, capsize=3)
        left.annotate(method, point, (4, 3), textcoords="offset points", fontsize=7)
        if method in DRAWN:
            middle = [statistics.mean(values) for values in zip(*(_values(c) for c in curves))]
            right.plot([step * n for n, _ in curves[0]], middle, label=method, linewidth=1.4)
    for axes in (left, right):
        axes.set(xscale="log", xlabel="seconds of training at 1 Gbit/s")
        axes.grid(alpha=0.3)
    left.set_ylabel(f"held-out {TASKS[task].measure}, mean over seeds")
    right.legend(fontsize=8)
    figure.suptitle(f"{task}: {TASKS[task].megabytes} MB of gradients, 2 hosts")
    figure.savefig(RESULTS / f"evaluation-{task}.png", dpi=100)
    pyplot.close(figure)


def _values(curve: list[list[float]]) -> list[float]:
    return [value for _, value in curve]
