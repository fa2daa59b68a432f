"""Delay control on a changing network, compared with fixed ratios.

    sudo python benchmarks/delay_control.py [--scenario low high] [--only REGEX] [--seeds 2]

Trains a model of evaluation/ with a constant learning rate on two hosts, each run on links that
change as its SCENARIO says:

mixed      words (3.4 MB of gradients): 1 Gbit/s, 100 Mbit/s, 1 Gbit/s shared with a TCP stream
           each way, 1 Gbit/s
low, high  text (18.8 MB): links of low and of high variation, in turns

Runs: none, block_topk at RATIOS, and block_topk and global_topk under delay control; of text also
global_topk at RATIOS. Adds missing runs (--again: all) to results/delay_control.json and draws
mixed in delay_control.png. Prints how much longer than the best ratio of its own kind each control
takes. A run has losses, [seconds, held-out loss], and bins of BIN seconds, each [seconds, median
step in seconds, mean ratio], all on rank 0.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from benchmarks import stamps  # noqa: E402
from benchmarks.bench.lab import Lab, mpirun_env  # noqa: E402
from benchmarks.bench.source import source  # noqa: E402

RESULTS = Path(__file__).parent / "results" / "delay_control.json"
HOSTS = 2


class Scenario(NamedTuple):
    task: str
    rate: float  # of learning
    budget_ms: float
    every: int  # steps between looks at the held-out loss and at the clock
    held_out: int  # examples
    seconds: float
    phases: tuple[tuple[float, str, str], ...]  # when it begins, the links' rate, and who else


def in_turns(*rates: str, of: float = 4.0, seconds: float = 20.0) -> tuple:
    return tuple((of * i, rates[i % len(rates)], "") for i in range(int(seconds / of)))


SCENARIOS = {
    "mixed": Scenario(
        *("words", 0.7, 10, 20, 1024, 25),
        ((0, "1gbit", ""), (4, "100mbit", ""), (14, "1gbit", "shared"), (19, "1gbit", "")),
    ),
    "low": Scenario("text", 0.1, 30, 5, 200, 20, in_turns("500mbit", "250mbit")),
    "high": Scenario("text", 0.1, 30, 5, 200, 20, in_turns("1gbit", "50mbit")),
}
# The best of text is to be neither the largest nor the smallest.
RATIOS = {"words": (0.3, 0.1, 0.03), "text": (0.3, 0.1, 0.03, 0.01, 0.003)}
TARGETS = {"mixed": (4.8, 4.6, 4.4), "low": (1.6, 1.4, 1.2), "high": (1.6, 1.4, 1.2)}  # nats
MIN_RATIO = 0.005
BIN = 0.25
CONTROLLED, GLOBAL = "delay control", "delay control, global_topk"
KINDS = {CONTROLLED: "block_topk", GLOBAL: "global_topk"}  # what each sends

Run = dict[str, Any]


def names(scenario: str) -> list[str]:
    task = SCENARIOS[scenario].task
    blocks, elements = ([f"{kind} {ratio:g}" for ratio in RATIOS[task]] for kind in KINDS.values())
    return ["none", *blocks, *(elements if task == "text" else ()), *KINDS]


def seconds_to(target: float, run: Run) -> float:
    """Until a reading of the held-out loss is there; infinite: none is."""
    return next((seconds for seconds, loss in run["losses"] if loss <= target), inf)


def behind(
    target: float, control: Sequence[Run], fixed: Sequence[Sequence[Run]]
) -> tuple[float, float] | None:
    """The control's seconds to the loss over the best fixed ratio's, means over the seeds that all
    have, and how many readings of the loss the difference is. None: one does not get there."""
    all_ = [{run["seed"]: run for run in runs} for runs in (control, *fixed)]
    seeds = sorted(set.intersection(*(set(runs) for runs in all_)))
    if not fixed or not seeds:
        return None
    own, *others = (statistics.mean(seconds_to(target, runs[s]) for s in seeds) for runs in all_)
    best = min(others)
    if inf in (own, best):
        return None
    return own / best, (own - best) / reading([run for runs in all_ for run in runs.values()])


def reading(runs: Iterable[Run]) -> float:
    """The median of the seconds between two readings of the loss."""
    times = [[seconds for seconds, _ in run["losses"]] for run in runs]
    return statistics.median(later - at for run in times for at, later in zip(run, run[1:]))


def compressor(name: str, scenario: Scenario) -> Any:
    from omnihvd import OmniReduce

    if name == "none":
        return OmniReduce
    if name in (CONTROLLED, GLOBAL):
        start = (OmniReduce.block_topk if name == CONTROLLED else OmniReduce.global_topk)(0.1)
        return start.with_delay_control(scenario.budget_ms, MIN_RATIO)
    kind, ratio = name.split()
    return (OmniReduce.global_topk if kind == KINDS[GLOBAL] else OmniReduce.block_topk)(
        float(ratio)
    )


def worker(name: str, scenario: Scenario, seed: int) -> None:
    """On each rank; rank 0 prints a line when it starts, and the run as the last."""
    import horovod.torch as hvd
    import torch

    from benchmarks.evaluation.tasks import TASKS
    from omnihvd.compression import counters

    torch.set_num_threads(1)
    hvd.init()
    task = TASKS[scenario.task](hvd.rank(), hvd.size())
    torch.manual_seed(seed)
    model = task.model()
    hvd.broadcast_parameters(model.state_dict(), 0)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), scenario.rate),
        model.named_parameters(),
        compressor(name, scenario),
    )
    held_out = [part[: scenario.held_out] for part in task.held_out]
    steps: list[tuple[float, float, float]] = []
    losses = []

    def loss() -> float:
        with torch.no_grad():
            return float(task.loss(model(held_out[0]), held_out[1]))

    hvd.barrier()
    if hvd.rank() == 0:
        print("start", flush=True)
    start, ratios = time.perf_counter(), 0.0
    while hvd.broadcast_object(time.perf_counter() - start) < scenario.seconds:
        losses.append((round(time.perf_counter() - start, 3), round(loss(), 4)))
        for _ in range(scenario.every):
            begun = time.perf_counter()
            inputs, targets = task.batch(seed, len(steps))
            optimizer.zero_grad()
            task.loss(model(inputs), targets).backward()
            optimizer.step()
            ended = time.perf_counter()
            before, ratios = ratios, counters.stats()["ratios"]
            steps.append((ended - start, ended - begun, ratios - before))
    if hvd.rank() == 0:
        print(json.dumps({"losses": losses, "bins": _bins(steps), "steps": len(steps)}))


def _bins(steps: list[tuple[float, float, float]]) -> list[list[float]]:
    found: dict[int, list[tuple[float, float, float]]] = {}
    for step in steps:
        found.setdefault(int(step[0] / BIN), []).append(step)
    return [
        [
            BIN * number,
            round(statistics.median(step[1] for step in inside), 5),
            round(statistics.mean(step[2] for step in inside), 5),
        ]
        for number, inside in sorted(found.items())
    ]


def measure(name: str, scenario: str, seed: int) -> dict[str, Any]:
    phases = SCENARIOS[scenario].phases
    with Lab(HOSTS, rate=phases[0][1]) as lab:
        command = [sys.executable, __file__, "--worker", name]
        command += ["--scenario", scenario, "--seed", str(seed)]
        job = subprocess.Popen(
            lab.mpirun_command(command),
            env={**mpirun_env(HOSTS), "OMNIHVD_WAY": "stream"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert job.stdout
        lines = iter(job.stdout)
        for line in lines:
            if line.strip() == "start":
                break
        changes = threading.Thread(target=change, args=(lab, phases, time.monotonic()), daemon=True)
        changes.start()
        last = ""
        for line in lines:
            last = line
        if job.wait():
            raise SystemExit(f"the training {name} failed")
        return dict(json.loads(last))


def change(lab: Lab, phases: tuple, start: float) -> None:
    """Changes the links through the phases. They are in the first one already."""
    for (begin, rate, shared), (end, _, _) in zip(phases[1:], [*phases[2:], (0, "", "")]):
        time.sleep(max(0, start + begin - time.monotonic()))
        lab.set_rate(rate)
        if shared:
            for pair in ((0, 1), (1, 0)):
                threading.Thread(
                    target=lab.raw_rate, args=(*pair, end - begin), daemon=True
                ).start()


def plot(content: dict[str, Any], path: Path) -> None:
    """Plots the runs of mixed in the JSON file."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    content = content["scenarios"]["mixed"]
    figure, (top, middle, low) = pyplot.subplots(
        3, 1, figsize=(9, 9), sharex=True, layout="constrained"
    )
    for run in content["runs"]:
        name = run["name"]
        width = 2.2 if name in (CONTROLLED, GLOBAL) else 1.1
        top.plot(*zip(*run["losses"]), label=name, linewidth=width)
        times, steps, ratios = zip(*run["bins"])
        middle.plot(times, [1e3 * step for step in steps], linewidth=width)
        if name == CONTROLLED:
            low.plot(times, ratios, color="black")
    for axes, label in ((top, "held-out loss (nats)"), (middle, "step (ms)"), (low, "ratio")):
        axes.set(ylabel=label)
        axes.grid(alpha=0.3)
        for begin, rate, shared in content["phases"]:
            axes.axvline(begin, color="grey", linewidth=0.8, linestyle=":")
            if axes is low:
                place = axes.get_xaxis_transform()
                axes.text(
                    begin + 0.2, 0.97, f"{rate} {shared}", transform=place, fontsize=8, va="top"
                )
    for axes in (middle, low):
        axes.set_yscale("log")
    low.set(xlabel="seconds of training")
    top.legend(fontsize=8)
    figure.suptitle(f"language model, 3.4 MB of gradients, {HOSTS} hosts, links that change")
    figure.savefig(path, dpi=100)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scenario", nargs="+", choices=list(SCENARIOS), default=list(SCENARIOS))
    parser.add_argument("--only", default="", help="of the runs' names, a regular expression")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=1e6, help="then no new run")
    parser.add_argument("--again", action="store_true", help="also runs that are there already")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return worker(args.worker, SCENARIOS[args.scenario[0]], args.seed)
    until = time.monotonic() + 60 * args.minutes
    wanted = [
        (scenario, name, seed)
        for seed in range(args.seeds)
        for scenario in args.scenario
        for name in names(scenario)
        if re.search(args.only, name)
    ]
    for scenario, name, seed in wanted:
        results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"scenarios": {}}
        about = SCENARIOS[scenario]
        content = results["scenarios"].get(scenario, {"runs": []})
        stamps.hand_down(content, content["runs"])
        others = [run for run in content["runs"] if (run["name"], run["seed"]) != (name, seed)]
        if time.monotonic() > until or (len(others) < len(content["runs"]) and not args.again):
            continue
        run = {**source(), "name": name, "seed": seed, **measure(name, scenario, seed)}
        ordered = sorted(
            [*others, run], key=lambda r: (names(scenario).index(r["name"]), r["seed"])
        )
        content = {**stamps.facts(), **about._asdict(), "runs": ordered}
        results["scenarios"][scenario] = content
        RESULTS.write_text(json.dumps(results) + "\n")
        print(scenario, name, seed, run["steps"], "steps", run["losses"][-1], flush=True)
    results = json.loads(RESULTS.read_text())
    plot(results, RESULTS.with_suffix(".png"))
    for scenario in args.scenario:
        say(scenario, results["scenarios"].get(scenario, {"runs": []})["runs"])
    return None


def say(scenario: str, runs: Sequence[Run]) -> None:
    """How much longer than the best ratio of its kind each control takes."""
    of_name = by_name(runs)
    for name, kind in KINDS.items():
        fixed = [of for other, of in of_name.items() if other.startswith(kind)]
        for target in TARGETS[scenario]:
            if found := behind(target, of_name.get(name, []), fixed):
                print(
                    f"{scenario}, {name}, to {target:g}: {found[0]:.2f} times as long as the best "
                    f"fixed ratio of {kind}, {found[1]:.1f} readings of the loss"
                )


def by_name(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """One of each seed."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(run["name"], []).append(run)
    return found


if __name__ == "__main__":
    main()
