"""Every method on four real tasks: quality, bytes, times.

    python benchmarks/evaluation/run.py [PART ...] [--missing]

quality  three seeds, on one host
momentum the same with four ranks and a momentum of 0.9; and adam (methods.optimizer)
1gbit    three times 30 steps on hosts with links of that rate, one rank each (needs root); and
         10gbit. Methods take turns; but not DGC's warm-up, which lasts longer.
         Beside the methods, "horovod": without omnihvd, in the faster of Open MPI's two settings
         that suit Horovod best
sidco    60 steps: how many elements SIDCo keeps from step 20 on
cost     no training: what methods cost for 25 M elements, into results/evaluation/cost.json
report   runs nothing

Writes results/evaluation/TASK-PART.json, a piece (task, method, seed) at a time: stop it at any
time, and go on with --missing. From all pieces it makes results/evaluation.md and a plot a task.
A piece has: curve, [step, held-out quality]; bytes, sent a step by rank 0 by streaming, or, between
hosts, by its host, all headers included; step_seconds, the median, and compress_seconds of it, the
mean, at the machine's `load` (on one host, of times only the latter means something);
kept_after_20, the share of elements that were not zero from step 20 on.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from benchmarks.bench.lab import Lab  # noqa: E402
from benchmarks.bench.lab_processes import mpirun_env  # noqa: E402
from benchmarks.bench.settings import AS_IT_IS, Setting  # noqa: E402
from benchmarks.evaluation import cost, methods, report  # noqa: E402
from benchmarks.evaluation.tasks import TASKS  # noqa: E402, and adds the folder of links

from links import BEST  # noqa: E402, isort: skip

OFF = {"OMNIHVD_ENABLE": "0"}
STREAMING = {"OMNIHVD_WAY": "stream", "OMNIHVD_MIN_BYTES": "1024"}


class Part(NamedTuple):
    makers: str = "methods"  # of methods.py
    seeds: int = 1
    steps: int = 0  # 0: the task's
    points: int = 0  # of the curve
    rate: str | None = None
    optimizer: str = "sgd"
    ranks: int = 0  # 0: --ranks


PARTS = {
    "quality": Part(seeds=3, points=10),
    "momentum": Part(seeds=3, points=10, optimizer="momentum", ranks=4),
    "adam": Part(seeds=3, points=10, optimizer="adam", ranks=4),
    "1gbit": Part(seeds=3, steps=30, rate="1gbit"),
    "10gbit": Part(seeds=3, steps=30, rate="10gbit"),
    "sidco": Part(makers="sidco", steps=60),
}


def run(name: str, task: str, arguments: argparse.Namespace) -> None:
    part = PARTS[name]
    file = report.file_of(task, name)
    there = {(piece["method"], piece["seed"]) for piece in report.pieces(task, name)}
    names = [*getattr(methods, part.makers)(TASKS[task])]
    if part.rate:  # its first steps are no measure of it
        names.remove("dgc, warm-up")
    wanted = [
        (method, seed)
        for seed in range(min(part.seeds, arguments.seeds))
        for method in arguments.method or names
        if not (arguments.missing and (method, seed) in there)
    ]
    for env, without in ((OFF, True), (STREAMING, False)):
        pieces = [piece for piece in wanted if (piece[0] == "horovod") == without]
        if not pieces or (without and not part.rate):
            continue
        given = {"file": str(file), "task": task, "makers": part.makers, "steps": part.steps}
        given |= {"points": part.points, "in_lab": bool(part.rate)}
        given |= {"pieces": pieces, "minutes": arguments.minutes, "optimizer": part.optimizer}
        ranks = part.ranks or arguments.ranks
        if without:
            for entry in _at_its_best(given, ranks, part.rate):
                report.add(file, entry)
        else:
            _launch(given, env, ranks, part.rate)


def _at_its_best(given: dict[str, Any], ranks: int, rate: str | None) -> list[dict[str, Any]]:
    """Plain Horovod's pieces, each in the setting in which its step took less time."""
    tried = []
    with tempfile.TemporaryDirectory() as folder:
        for i, setting in enumerate(BEST):
            file = Path(folder, f"{i}.json")
            _launch({**given, "file": str(file)}, OFF, ranks, rate, setting)
            found = json.loads(file.read_text()) if file.exists() else []  # none: out of time
            tried.append([{**entry, "setting": setting.name} for entry in found])
    best = []
    for entries in zip(*tried):
        seconds = {entry["setting"]: entry["step_seconds"] for entry in entries}
        best.append({**min(entries, key=lambda entry: entry["step_seconds"]), "tried": seconds})
    return best


def _launch(
    given: dict[str, Any],
    env: dict[str, str],
    ranks: int,
    rate: str | None,
    setting: Setting = AS_IT_IS,
) -> None:
    command = [sys.executable, str(Path(__file__).with_name("worker.py")), json.dumps(given)]
    if rate:
        with Lab(ranks, rate=rate) as lab:
            lab.mpirun(command, env=env, mca=setting.mca)
    else:
        mpirun = ["mpirun", "--oversubscribe", "-np", str(ranks), *command]
        yields = {"OMPI_MCA_mpi_yield_when_idle": "1"}
        subprocess.run(mpirun, env={**mpirun_env(ranks), **env, **yields}, check=True, cwd=ROOT)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parts = [*PARTS, "cost", "report"]
    parser.add_argument("part", nargs="*", metavar="PART", help="default: all")
    parser.add_argument("--task", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--method", nargs="+", help="default: all; of cost: as in its table")
    parser.add_argument("--seeds", type=int, default=3, help="at most; default: 3")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=1e6, help="for a task: then no new piece")
    parser.add_argument("--missing", action="store_true", help="only pieces that are not there")
    arguments = parser.parse_args()
    if unknown := set(arguments.part) - set(parts):
        parser.error(f"no part {unknown.pop()}: there are {', '.join(parts)}")
    wanted = arguments.part or parts
    linked = [part for part in wanted if part in PARTS and PARTS[part].rate]
    if linked and os.geteuid() != 0:
        others = [part for part in parts if part not in PARTS or not PARTS[part].rate]
        parser.error(
            f"{' and '.join(linked)}: hosts with links need root. Use sudo, or name other parts: "
            f"{' '.join(others)}"
        )
    for part in wanted:
        for task in arguments.task if part in PARTS else []:
            run(part, task, arguments)
        if part == "cost":
            found = report.costs() if arguments.method else []
            report.save(report.COSTS, report.replaced(found, cost.measure(arguments.method)))
    report.write()


if __name__ == "__main__":
    main()
