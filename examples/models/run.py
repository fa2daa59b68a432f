"""Trains the six models of OmniReduce's paper, and says what omnihvd does for each.

    python examples/models/run.py --model bert --data DIR
    sudo python examples/models/run.py --model all --data DIR --download --rates 1gbit 10gbit

zeros    how sparse gradients are, by elements and blocks, beside the paper's table 1
links    what a step takes on 4 hosts with shaped links (root; else on this machine alone): plain
         Horovod in the best of MPI's settings, its fp16 compression, OmniReduce, QSGD with 4 bits
         and block_topk(0.1); beside what `omnihvd report` predicts. With --only, what was measured
         before stays: `arithmetic` adds OmniReduce in integers and SwitchML*, `rows` OmniReduce
         with blocks of ten elements
quality  on held-out data, by step and by second, of trainings on links of the first rate, by method
         and seed, each a job: stop it at any time, and go on with --missing

DIR has the data, or gets it (--download); sources.py says where what is. Models are the published
ones with fewer layers, words or users, so that two cores finish; --full has all. Writes
MODEL.json into --output.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
import duration  # noqa: E402
import links  # noqa: E402
import model_jobs  # noqa: E402
import sources  # noqa: E402
import zeros  # noqa: E402
from compared import ALONE, MEASURED, WAYS, WITHOUT  # noqa: E402
from registry import FOLDERS, MODELS  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.progress import (  # noqa: E402
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table  # noqa: E402

from benchmarks import stamps  # noqa: E402
from benchmarks.bench.lab import Lab, LabError  # noqa: E402
from benchmarks.bench.source import source  # noqa: E402

PARTS = ("zeros", "links", "quality")
STREAM = {"OMNIHVD_WAY": "stream", "OMNIHVD_MIN_BYTES": "1024"}
console = Console()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", nargs="+", choices=[*MODELS, "all"], required=True)
    parser.add_argument("--data", type=Path, help="the folder (default: none)")
    parser.add_argument("--download", action="store_true", help="what is missing there")
    parser.add_argument("--full", action="store_true", help="models of the published sizes")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--hosts", type=int, default=4, help="each with one rank")
    parser.add_argument("--rates", nargs="+", default=["1gbit"], help="of links")
    parser.add_argument(
        "--only",
        choices=list(ALONE),
        help="of links: only these steps; keeps the others",
    )
    parser.add_argument("--local", action="store_true", help="no links: this machine alone")
    parser.add_argument(
        "--steps",
        type=int,
        help="of each part (default: on links 40; the times of the second half count)",
    )
    parser.add_argument("--zeros-steps", type=int, help="default: as --steps, else 20")
    parser.add_argument(
        "--masks",
        type=Path,
        metavar="DIR",
        help="of zeros: write which blocks were zero, for `python -m simulator --masks`",
    )
    parser.add_argument("--quality-steps", type=int, help="default: as --steps, else the model's")
    parser.add_argument("--seeds", type=int, default=3, help="of quality")
    parser.add_argument(
        "--missing", action="store_true", help="of quality only what MODEL.json has not yet"
    )
    parser.add_argument("--minutes", type=float, help="of quality: then nothing new is begun")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds, of a job")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "models")
    args = parser.parse_args()
    if "all" in args.model:
        args.model = list(MODELS)
    args.zeros_steps = args.zeros_steps or args.steps or 20
    args.quality_steps = args.quality_steps or args.steps
    args.steps = args.steps or 40
    args.until = time.monotonic() + 60 * args.minutes if args.minutes else math.inf
    if args.data:
        args.data = args.data.resolve()
    elif args.download:
        parser.error("--download: into which folder? (--data)")
    return args


class Bars:
    """One for what is under way, in a job or here."""

    def __init__(self, progress: Progress, model: str) -> None:
        self._progress, self._model = progress, model
        self._task = progress.add_task(model, total=None, what="")

    def tell(self, what: str, done: int, total: int) -> None:
        self._progress.update(self._task, completed=done, total=total, what=what)
        if not console.is_terminal and done == total:
            console.print(f"{self._model}: {what}", markup=False, highlight=False)


def zeros_of(name: str, args: argparse.Namespace, bars: Bars, result: dict[str, Any]) -> None:
    size, steps = ("full", 1) if args.full else ("default", args.zeros_steps)
    ranks = 1 if args.full and not args.masks else args.hosts
    masks, about = args.masks / f"{name}.npz" if args.masks else None, source()
    if masks:
        masks.parent.mkdir(parents=True, exist_ok=True)

    def tell(step: int) -> None:
        bars.tell("looking at gradients", step, steps)

    found = zeros.measure(name, args.data, size, ranks, steps, tell=tell, masks=masks)
    others = [z for z in result.get("zeros", []) if z["size"] != size]
    result["zeros"] = [*others, {**about, **found}]


def links_of(name: str, args: argparse.Namespace, bars: Bars, result: dict[str, Any]) -> None:
    given = given_of(name, args, args.steps, 1)
    given |= {"warm_up": args.steps // 2, "timed": not args.local}
    about = source()
    if args.local:
        measured = links.measure(given, args.hosts, None, bars.tell, args.timeout)
        result.setdefault("links", {})["none"] = {**about, **measured}
        return
    predicted = links.predict(given, args.hosts, args.rates, bars.tell, args.timeout)
    for rate in args.rates:
        measured = links.measure(given, args.hosts, rate, bars.tell, args.timeout)
        result.setdefault("links", {})[rate] = {**about, **measured, "predicted": predicted[rate]}
        save(name, args, result)


def quality_of(name: str, args: argparse.Namespace, bars: Bars, result: dict[str, Any]) -> None:
    steps, rate = args.quality_steps or MODELS[name].steps, rate_of(args)
    given = given_of(name, args, steps, args.seeds)
    given |= {"points": duration.POINTS, "timed": bool(rate)}
    setting = links.best_of(result.get("links", {}).get(rate or "none", {}).get("settings", {}))
    ours = {} if rate else STREAM
    with Lab(args.hosts, rate=rate) if rate else nullcontext() as lab:
        for method, seed in pieces_of(name, args, result):
            if time.monotonic() > args.until:
                return
            about = {**source(), "rate": rate, "setting": setting.name}
            (found,) = model_jobs.run(
                {**given, "methods": [method], "seeds": [seed]},
                *(args.hosts, bars.tell),
                **{"lab": lab, "mca": setting.mca, "timeout": args.timeout},
                env=model_jobs.OFF if method in WITHOUT else ours,
            )
            others = [e for e in result.get("quality", []) if of_piece(e) != (method, seed)]
            keys = ("method", "seed", "steps", "ranks", "curve", "reached_s", "first_s")
            kept = {**about, **{key: found[key] for key in keys}}
            result["quality"] = sorted([*others, kept], key=lambda e: (e["seed"], e["method"]))
            save(name, args, result)


def rate_of(args: argparse.Namespace) -> str | None:
    """The rate of the links of trainings of quality; None: this machine alone."""
    return None if args.local else args.rates[0]


def pieces_of(name: str, args: argparse.Namespace, result: dict[str, Any]) -> list[tuple[str, int]]:
    """Method and seed of the trainings of quality that are to be made."""
    steps = args.quality_steps or MODELS[name].steps
    pieces = [(method, seed) for seed in range(args.seeds) for method in MEASURED]
    if not args.missing:
        return pieces
    rate = rate_of(args)
    there = {
        of_piece(e)
        for e in result.get("quality", [])
        if e["steps"] == steps and e.get("rate") == rate
    }
    return [piece for piece in pieces if piece not in there]


def of_piece(entry: dict[str, Any]) -> tuple[str, int]:
    return entry["method"], entry["seed"]


def alone_of(name: str, args: argparse.Namespace, bars: Bars, result: dict[str, Any]) -> None:
    """Steps of --only, beside what was measured of the others before."""
    given = given_of(name, args, args.steps, 1)
    given |= {"warm_up": args.steps // 2, "timed": not args.local}
    for rate in [None] if args.local else args.rates:
        there = result.setdefault("links", {}).setdefault(rate or "none", {"methods": {}})
        words = (rate, there.get("settings", {}), bars.tell, args.timeout)
        there["methods"] |= links.measure_alone(ALONE[args.only], given, args.hosts, *words)
        save(name, args, result)


def given_of(name: str, args: argparse.Namespace, steps: int, seeds: int) -> dict[str, Any]:
    size = "full" if args.full else "default"
    given = {"model": name, "size": size, "steps": steps, "seeds": list(range(seeds))}
    return given | {"data": str(args.data) if args.data else None}


def table(name: str, result: dict[str, Any]) -> Table:
    about = MODELS[name]
    shown = Table(title=f"{name}: {result['source']}", title_justify="left")
    for head in ("", "a step", "predicted", "sent by a host", f"held out: {about.measure}"):
        shown.add_column(head, justify="right" if head else "left")
    qualities = {
        method: [e["curve"][-1][1] for e in result.get("quality", []) if e["method"] == method]
        for method in MEASURED
    }
    for rate, measured in result.get("links", {}).items():
        shown.add_section()
        for method, entry in measured["methods"].items():
            predicted = measured.get("predicted", {}).get(method)
            ends = qualities.get(method)
            shown.add_row(
                f"{WAYS[method].title}, {rate}",
                f"{1e3 * entry['step_s']:.0f} ms",
                f"{1e3 * predicted:.0f} ms" if predicted else "",
                f"{entry['bytes'] / 1e6:.2f} MB",
                interval(ends) if ends else "",
            )
    said = []
    for z in result.get("zeros", []):
        share = f"{z['size']}: {z['zeros']:.1%} zeros, {z['zero_blocks']:.1%} of blocks of 256"
        said.append(f"{share}; of the ranks' sum {z['sum_zeros']:.1%}, {z['sum_zero_blocks']:.1%}")
    shown.caption = "\n".join([*said, f"published: {about.published.zeros}% zeros"])
    return shown


def interval(values: list[float]) -> str:
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.4f} ± {spread:.4f}"


def measure(name: str, args: argparse.Namespace, bars: Bars) -> dict[str, Any]:
    file = file_of(name, args)
    result: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    size = "full" if args.full else "default"
    result["source"] = MODELS[name](args.data, size).source
    console.print(f"{name}: {result['source']}", markup=False, highlight=False)
    pieces = len(pieces_of(name, args, result))
    console.print(duration.told(name, args, pieces), markup=False, highlight=False)
    measures = {"zeros": zeros_of, "links": links_of, "quality": quality_of}
    measures |= {"links": alone_of} if args.only else {}
    for part in args.parts:
        measures[part](name, args, bars, result)
        save(name, args, result)
    return result


def file_of(name: str, args: argparse.Namespace) -> Path:
    return args.output / f"{name}.json"


def save(name: str, args: argparse.Namespace, result: dict[str, Any]) -> None:
    """Each part keeps the stamp of the run that made it, though another run writes the file."""
    args.output.mkdir(parents=True, exist_ok=True)
    parts = [*result.get("zeros", []), *result.get("links", {}).values()]
    stamps.hand_down(result, [*parts, *result.get("quality", [])])
    content = {**result, **stamps.facts(), "hosts": args.hosts}
    file_of(name, args).write_text(json.dumps(content, indent=1) + "\n")


def main() -> int:
    args = parse_arguments()
    for folder in sorted({FOLDERS[name] for name in args.model}) if args.download else ():
        wrong = sources.download(args.data, folder)
        if wrong:
            console.print(wrong, style="yellow", markup=False, highlight=False)
    columns = (
        TextColumn("{task.description:10}"),
        *(BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()),
        TextColumn("{task.fields[what]}"),
    )
    try:
        for name in args.model:
            with Progress(*columns, console=console, transient=True) as progress:
                result = measure(name, args, Bars(progress, name))
            console.print(table(name, result))
    except (model_jobs.JobError, links.Differs, LabError) as error:
        console.print(f"models: {error}", markup=False, highlight=False)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
