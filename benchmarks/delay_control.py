"""Delay control while the network changes, against ratios that stay.

    sudo python benchmarks/delay_control.py [--only REGEX] [--seconds 25]

Trains the language model of evaluation/ (words: 3.4 MB of gradients) with a constant learning rate
on two hosts, each run on links that are first 1 Gbit/s, then 100 Mbit/s, then 1 Gbit/s shared with
a TCP stream each way, then 1 Gbit/s again: PHASES. Runs: none, block_topk at RATIOS, and under
delay control. Writes results/delay_control.json, which runs are added to, and of it
delay_control.png. A run has losses, [seconds, held-out loss], and bins of BIN seconds, each
[seconds, median step in seconds, mean ratio], all on rank 0.
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
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from omnihvd.bench.command import machine  # noqa: E402
from omnihvd.bench.lab import Lab, mpirun_env  # noqa: E402

RESULTS = Path(__file__).parent / "results" / "delay_control.json"
HOSTS = 2
PHASES = ((0, "1gbit", ""), (4, "100mbit", ""), (14, "1gbit", "shared"), (19, "1gbit", ""))
RATIOS = (0.3, 0.1, 0.03)
BUDGET_MS, MIN_RATIO = 10, 0.005
RATE = 0.7  # of learning
EVERY = 20  # steps between looks at the held-out loss and at the clock
BIN = 0.25
TARGETS = (4.8, 4.6, 4.4)  # held-out loss, nats
CONTROLLED = "delay control"


def names() -> list[str]:
    return ["none", *(f"block_topk {ratio:g}" for ratio in RATIOS), CONTROLLED]


def compressor(name: str) -> Any:
    from omnihvd import OmniReduce

    if name == "none":
        return OmniReduce
    if name == CONTROLLED:
        return OmniReduce.block_topk(0.1).with_delay_control(BUDGET_MS, MIN_RATIO)
    return OmniReduce.block_topk(float(name.split()[1]))


def worker(name: str, seconds: float) -> None:
    """On each rank; rank 0 prints a line when it starts, and the run as the last."""
    import horovod.torch as hvd
    import torch

    from benchmarks.evaluation.tasks import Words
    from omnihvd.compressors import counters

    torch.set_num_threads(1)
    hvd.init()
    task = Words(hvd.rank(), hvd.size())
    torch.manual_seed(0)
    model = task.model()
    hvd.broadcast_parameters(model.state_dict(), 0)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), RATE), model.named_parameters(), compressor(name)
    )
    held_out = [part[:1024] for part in task.held_out]
    steps: list[tuple[float, float, float]] = []
    losses = []

    def loss() -> float:
        with torch.no_grad():
            return float(task.loss(model(held_out[0]), held_out[1]))

    hvd.barrier()
    if hvd.rank() == 0:
        print("start", flush=True)
    start, ratios = time.perf_counter(), 0.0
    while hvd.broadcast_object(time.perf_counter() - start) < seconds:
        losses.append((round(time.perf_counter() - start, 3), round(loss(), 4)))
        for _ in range(EVERY):
            begun = time.perf_counter()
            inputs, targets = task.batch(0, len(steps))
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


def measure(name: str, seconds: float) -> dict[str, Any]:
    with Lab(HOSTS, rate=PHASES[0][1]) as lab:
        command = [sys.executable, __file__, "--worker", name, "--seconds", str(seconds)]
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
        changes = threading.Thread(target=change, args=(lab, time.monotonic()), daemon=True)
        changes.start()
        last = ""
        for line in lines:
            last = line
        if job.wait():
            raise SystemExit(f"the training {name} failed")
        return dict(json.loads(last))


def change(lab: Lab, start: float) -> None:
    """Makes the links as PHASES says, the first of which they are."""
    for (begin, rate, shared), (end, _, _) in zip(PHASES[1:], [*PHASES[2:], (0, "", "")]):
        time.sleep(max(0, start + begin - time.monotonic()))
        lab.set_rate(rate)
        if shared:
            for pair in ((0, 1), (1, 0)):
                threading.Thread(
                    target=lab.raw_rate, args=(*pair, end - begin), daemon=True
                ).start()


def seconds_to(run: dict[str, Any], target: float) -> float | None:
    return next((seconds for seconds, loss in run["losses"] if loss <= target), None)


def table(content: dict[str, Any]) -> str:
    lines = [f"{'':16s}" + "".join(f" s to {target:<7}" for target in TARGETS) + "steps"]
    for name, run in content["runs"].items():
        found = [seconds_to(run, target) for target in TARGETS]
        cells = "".join(f" {'' if s is None else f'{s:.1f}':>12s}" for s in found)
        lines.append(f"{name:16s}{cells} {run['steps']:8d}")
    return "\n".join(lines)


def plot(content: dict[str, Any], path: Path) -> None:
    """Of what is in the JSON file."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (top, middle, low) = pyplot.subplots(
        3, 1, figsize=(9, 9), sharex=True, layout="constrained"
    )
    for name, run in content["runs"].items():
        width = 2.2 if name == CONTROLLED else 1.1
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
    parser.add_argument("--only", default="", help="of the runs' names, a regular expression")
    parser.add_argument("--seconds", type=float, default=25, help="of each run")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        return worker(arguments.worker, arguments.seconds)
    runs = json.loads(RESULTS.read_text())["runs"] if RESULTS.exists() else {}
    for name in names():
        if re.search(arguments.only, name):
            runs[name] = measure(name, arguments.seconds)
            ordered = {known: runs[known] for known in names() if known in runs}
            content = {**machine(), "phases": PHASES, "budget_ms": BUDGET_MS, "runs": ordered}
            RESULTS.write_text(json.dumps(content) + "\n")
            print(table(content), flush=True)
    plot(json.loads(RESULTS.read_text()), RESULTS.with_suffix(".png"))
    return None


if __name__ == "__main__":
    main()
