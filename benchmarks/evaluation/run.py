"""Every method on four real tasks, with three seeds: quality, bytes, times.

    python benchmarks/evaluation/run.py [--missing] [--minutes M] [--rate 1gbit] [--table]

Writes one file of JSON for each task, method and seed into results/evaluation (with --rate: into
results/evaluation-RATE, on hosts with shaped links, for which it needs root), so that it can be
stopped and goes on with --missing; --table makes evaluation.md of them, and a plot for each task. A
file has: curve, [step, held-out quality]; quality, the last of it; bytes, sent a step by rank 0, by
streaming; step_seconds, the median, and
compress_seconds of it, the mean, at the machine's `load`; kept_after_20, the share of elements that
were not zero from step 20 on. Without --rate the ranks are on one host, and of the times only the
cost of compression means something.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from benchmarks.evaluation.methods import methods  # noqa: E402
from benchmarks.evaluation.tasks import TASKS  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results"


def run(arguments: argparse.Namespace, folder: Path) -> None:
    env = {"OMNIHVD_WAY": "stream", "OMNIHVD_MIN_BYTES": "1024"}
    for task in arguments.task:
        pieces = [
            f"{method}:{seed}"
            for seed in range(arguments.seeds)
            for method in arguments.method
            if not (arguments.missing and _file(folder, task, method, seed).exists())
        ]
        if not pieces:
            continue
        command = [sys.executable, str(Path(__file__).with_name("worker.py")), str(folder), task]
        command += [str(arguments.steps), str(arguments.minutes), *pieces]
        if arguments.rate:
            from omnihvd.bench.lab import Lab

            with Lab(arguments.ranks, rate=arguments.rate) as lab:
                lab.mpirun(command, env=env, timeout=60 * arguments.minutes + 600)
        else:
            mpirun = ["mpirun", "--oversubscribe", "-np", str(arguments.ranks), *command]
            yields = {"OMPI_MCA_mpi_yield_when_idle": "1"}
            subprocess.run(mpirun, env={**os.environ, **env, **yields}, check=True, cwd=ROOT)


def _file(folder: Path, task: str, method: str, seed: int) -> Path:
    return folder / f"{task}-{method.replace(' ', '_')}-{seed}.json"


def table(folder: Path) -> str:
    """Of the pieces that there are: means over seeds, and the standard deviation of quality."""
    pieces = [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]
    lines = []
    for task in TASKS:
        ours = [piece for piece in pieces if piece["task"] == task]
        if not ours:
            continue
        size, measure = ours[0]["gradient_bytes"] / 1e6, ours[0]["measure"]
        lines += [
            f"\n{task}: {size:.1f} MB of gradients, {ours[0]['ranks']} ranks\n",
            f"| method | seeds | {measure} | kB a step | kept | ms a step | compressing |",
            "|---|---|---|---|---|---|---|",
        ]
        for method in methods():
            rows = [piece for piece in ours if piece["method"] == method]
            if rows:
                lines.append(_row(method, rows))
    return "\n".join(lines).lstrip() + "\n"


def _row(method: str, rows: list[dict[str, Any]]) -> str:
    def mean(name: str) -> float:
        return statistics.mean(row[name] for row in rows)

    spread = statistics.pstdev(row["quality"] for row in rows)
    quality = f"{mean('quality'):.4f} ± {spread:.4f}"
    times = f"{mean('step_seconds') * 1e3:.1f} | {mean('compress_seconds') * 1e3:.1f}"
    kept = f"{mean('kept_after_20'):.2%}"
    return f"| {method} | {len(rows)} | {quality} | {mean('bytes') / 1e3:.1f} | {kept} | {times} |"


def plot(folder: Path) -> None:
    """For each task: quality against bytes, a point for each method."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pieces = [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]
    for task in {piece["task"] for piece in pieces}:
        figure, axes = pyplot.subplots(figsize=(8, 5), layout="constrained")
        for method in methods():
            rows = [p for p in pieces if p["task"] == task and p["method"] == method]
            if not rows or not rows[0]["bytes"]:
                continue
            x = statistics.mean(row["bytes"] for row in rows) / 1e3
            qualities = [row["quality"] for row in rows]
            y = statistics.mean(qualities)
            axes.errorbar(x, y, statistics.pstdev(qualities), fmt="o", capsize=3)
            axes.annotate(method, (x, y), (5, 4), textcoords="offset points", fontsize=8)
        axes.set(xscale="log", xlabel="kB sent a step by a rank", title=task)
        axes.set_ylabel(f"held-out {next(p['measure'] for p in pieces if p['task'] == task)}")
        axes.grid(alpha=0.3)
        figure.savefig(RESULTS / f"{folder.name}-{task}.png", dpi=110)
        pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--task", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--method", nargs="+", choices=list(methods()), default=list(methods()))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=0, help="0: each task's own")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rate", help="of links between hosts (root): 1gbit, 10gbit")
    parser.add_argument("--minutes", type=float, default=1e6, help="for a task: then no new piece")
    parser.add_argument("--missing", action="store_true", help="only pieces that have no file")
    parser.add_argument("--table", action="store_true", help="run nothing")
    arguments = parser.parse_args()
    folder = RESULTS / ("evaluation" + (f"-{arguments.rate}" if arguments.rate else ""))
    folder.mkdir(parents=True, exist_ok=True)
    if not arguments.table:
        run(arguments, folder)
    (RESULTS / f"{folder.name}.md").write_text(table(folder))
    plot(folder)
    print(table(folder))


main()
