"""What block compression costs and saves: loss, bytes and time a step, on shaped links.

    python benchmarks/compression.py [--task digits words] [--steps N] [--only REGEX]

Trains dense models on HOSTS hosts of one rank each, joined by links of RATE, by plain SGD with a
learning rate that falls linearly to 0:

- digits: a perceptron, 64-1024-1024-10 (4.5 MB), on scikit-learn's handwritten digits;
- words: a language model, 8 words to the next, full softmax over 4096 words (3.4 MB), on the text
  of Python's own standard library.

with each compressor at 10%, 5% and 1%, with and without error feedback, and with none; and, where
there is a ratio, with a warm-up from all blocks to the ratio over the first half. Thresholds
have no ratio: before a run, a shorter one looks for the threshold that keeps the ratio; `kept`
tells what the run then kept. All runs see the same batches and start from the same weights.

Writes results/compression.json and, of it, compression.png. Each run has: losses, [step, held-out
loss in nats]; step_seconds, wall time of each step on rank 0; select_seconds, the mean share of
selection in them; bytes, sent over the link a step, all headers included, the mean of the hosts;
kept, the share of the elements sent. The first run, "horovod", is without omnihvd. A time is only
worth as much as the machine was idle: `load` is its load average before the run, on `cores` cores.
`selection` has, apart from that, what one core needs for a gradient of 100 MB: processor seconds.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import re
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from standard_text import numbered_words

HOSTS = 4
RATE = "1gbit"
RATIOS = (0.10, 0.05, 0.01)
KINDS = ("block_topk", "block_random", "block_threshold", "topk_threshold")
COLORS = dict(zip(KINDS, ("#0072B2", "#E69F00", "#009E73", "#D55E00")))
MARKERS = dict(zip(KINDS, "o^sv"))
RESULTS = Path(__file__).parent / "results"


# --- tasks: a model, its batches, its held-out examples ---------------------------------------


class Task:
    """Examples, split into those of this rank and those held out. A batch is drawn by its step."""

    batch_size: int
    learning_rate: float
    megabytes: float  # of gradients

    def __init__(self, inputs: Any, targets: Any, held_out: int, rank: int, ranks: int) -> None:
        self.held_out = inputs[-held_out:], targets[-held_out:]
        mine = slice(rank, len(inputs) - held_out, ranks)
        self.inputs, self.targets = inputs[mine], targets[mine]

    def batch(self, step: int) -> tuple[Any, Any]:
        import torch

        chosen = torch.randint(
            len(self.inputs),
            (self.batch_size,),
            generator=torch.Generator().manual_seed(step),
        )
        return self.inputs[chosen], self.targets[chosen]


class Digits(Task):
    batch_size, learning_rate, megabytes = 32, 0.3, 4.5

    def __init__(self, rank: int, ranks: int) -> None:
        import torch
        from sklearn.datasets import load_digits

        digits = load_digits()
        order = torch.randperm(len(digits.data), generator=torch.Generator().manual_seed(0))
        inputs = torch.tensor(digits.data, dtype=torch.float32)[order] / 16
        super().__init__(inputs, torch.tensor(digits.target)[order], 360, rank, ranks)

    def model(self) -> Any:
        from torch import nn

        return nn.Sequential(
            nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
        )


class Words(Task):
    batch_size, learning_rate, megabytes = 64, 1.0, 3.4
    vocabulary, context = 4096, 8

    def __init__(self, rank: int, ranks: int) -> None:
        import torch

        numbers = torch.tensor(numbered_words(self.vocabulary))
        windows = numbers.unfold(0, self.context + 1, self.context + 1)
        order = torch.randperm(len(windows), generator=torch.Generator().manual_seed(0))
        windows = windows[order]
        super().__init__(windows[:, :-1], windows[:, -1], 4096, rank, ranks)

    def model(self) -> Any:
        from torch import nn

        return nn.Sequential(
            nn.Embedding(self.vocabulary, 64),
            nn.Flatten(),
            nn.Linear(64 * self.context, 128),
            nn.Tanh(),
            nn.Linear(128, self.vocabulary),
        )


TASKS = {"digits": Digits, "words": Words}


# --- runs: on each rank -----------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Run:
    kind: str  # one of KINDS, "none", or "horovod": none, without omnihvd
    ratio: float = 1.0
    error_feedback: bool = True
    warm_up: bool = False

    @property
    def name(self) -> str:
        if self.kind not in KINDS:
            return self.kind
        return f"{self.kind} {self.ratio:.0%}{self.variant}"

    @property
    def variant(self) -> str:
        return ", warm-up" * self.warm_up + ", no feedback" * (not self.error_feedback)


ALL_RUNS = [
    Run("horovod"),
    Run("none"),
    *(
        Run(kind, ratio, feedback, warm_up)
        for ratio in RATIOS
        for kind in KINDS
        for feedback, warm_up in ((True, False), (False, False), (True, True))
        if not (warm_up and "threshold" in kind)
    ),
]


def sent_bytes() -> int:
    """By this host, since it came up."""
    return int(Path("/sys/class/net/eth0/statistics/tx_bytes").read_text())


def train(task: Task, compression: Any, steps: int, after_step: Any = None) -> dict[str, Any]:
    """Trains anew; returns what the module's docstring says of a run."""
    import horovod.torch as hvd
    import torch
    from torch.nn.functional import cross_entropy

    from omnihvd.compressors import counters

    torch.manual_seed(0)
    model = task.model()
    hvd.broadcast_parameters(model.state_dict(), 0)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), task.learning_rate),
        model.named_parameters(),
        compression,
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    counters.reset()
    losses, step_seconds = [], []
    hvd.barrier()
    sent = sent_bytes()
    for step in range(steps):
        start = time.perf_counter()
        inputs, targets = task.batch(step)
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        step_seconds.append(round(time.perf_counter() - start, 6))
        schedule.step()
        if after_step:
            after_step()
        if (step + 1) % max(1, steps // 25) == 0 and hvd.rank() == 0:
            with torch.no_grad():
                inputs, targets = task.held_out
                losses.append((step + 1, float(cross_entropy(model(inputs), targets))))
    hvd.barrier()
    sent = hvd.allreduce(torch.tensor(float(sent_bytes() - sent)), op=hvd.Average, name="sent")
    cost = counters.stats()
    return {
        "losses": losses,
        "step_seconds": step_seconds,
        "select_seconds": cost["seconds"] / steps,
        "bytes": round(float(sent) / steps),
        "kept": cost["kept_elements"] / cost["elements"] if cost["elements"] else 1.0,
    }


def compressor_for(run: Run, task: Task, steps: int) -> Any:
    from omnihvd import OmniReduce

    if run.kind not in KINDS:
        return OmniReduce
    make = getattr(OmniReduce, run.kind)
    if "threshold" in run.kind:
        compressor = make(find_threshold(run, task, steps // 4))
    else:
        compressor = make(run.ratio)
    if run.warm_up:
        compressor = compressor.with_warmup(epochs=1, start=1.0, steps_per_epoch=steps // 2)
    return compressor.with_error_feedback(run.error_feedback)


def find_threshold(run: Run, task: Task, steps: int) -> float:
    """The threshold that keeps the ratio: the mean over the last half of a training with control.

    After each step, the threshold is moved by the logarithm of what all ranks kept over the ratio.
    """
    import horovod.torch as hvd
    import torch

    from omnihvd import OmniReduce
    from omnihvd.compressors import counters

    compressor = getattr(OmniReduce, run.kind)(1e-3).with_error_feedback(run.error_feedback)
    tried, before = [], {"kept_elements": 0.0, "elements": 0.0}

    def adjust() -> None:
        now = counters.stats()
        kept, seen = (now[key] - before[key] for key in ("kept_elements", "elements"))
        before.update({key: now[key] for key in before})
        share = float(hvd.allreduce(torch.tensor(kept / seen), op=hvd.Average, name="share"))
        rule = compressor.config.rule
        tried.append(rule.threshold)
        change = 0.3 * max(-5.0, math.log(max(share, 1e-6) / run.ratio))
        rule = dataclasses.replace(rule, threshold=rule.threshold * math.exp(change))
        compressor.config = dataclasses.replace(compressor.config, rule=rule)

    train(task, compressor, steps, adjust)
    return statistics.geometric_mean(tried[len(tried) // 2 :])


def worker(arguments: argparse.Namespace) -> None:
    """On each rank: all runs of one task; rank 0 writes a line of JSON for each."""
    import horovod.torch as hvd

    import omnihvd

    hvd.init()
    task = TASKS[arguments.task[0]](hvd.rank(), hvd.size())
    for run in ALL_RUNS:
        enabled = os.environ.get("OMNIHVD_ENABLE", "1") != "0"
        if enabled == (run.kind == "horovod") or not re.search(arguments.only, run.name):
            continue
        compressor = compressor_for(run, task, arguments.steps)
        load, calls = os.getloadavg()[0], omnihvd.stats()["calls"]
        measured = train(task, compressor, arguments.steps)
        if enabled and omnihvd.stats()["calls"] == calls:
            raise SystemExit("omnihvd took no allreduce: these would be Horovod's figures")
        if hvd.rank() == 0:
            rule = compressor.config.rule if run.kind in KINDS else None
            entry = {
                "name": run.name,
                **dataclasses.asdict(run),
                "variant": run.variant,
                "threshold": getattr(rule, "threshold", None),
                "load": load,
                **measured,
            }
            with arguments.worker.open("a") as file:
                file.write(json.dumps(entry) + "\n")


# --- the whole: on the machine ----------------------------------------------------------------


def measure(task: str, arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields the runs of one task, from two jobs: without omnihvd, and with."""
    from omnihvd.bench.lab import Lab

    with Lab(HOSTS, rate=RATE) as lab:
        for enable in ("0", "1"):
            lines = RESULTS / f"compression_{task}_{enable}.tmp"
            lines.unlink(missing_ok=True)
            command = [sys.executable, __file__, "--worker", str(lines), "--task", task]
            command += ["--steps", str(arguments.steps), "--only", arguments.only]
            lab.mpirun(command, env={"OMNIHVD_ENABLE": enable}, timeout=arguments.timeout)
            if lines.exists():
                yield from map(json.loads, lines.read_text().splitlines())
                lines.unlink()


def selection_cost(elements: int = 25_000_000, runs: int = 3) -> dict[str, float]:
    """Processor seconds, the least of some runs, to compress a float32 gradient, on one core."""
    import torch

    from omnihvd import compressors
    from omnihvd.compressors.torch_split import ParameterState, split_by

    torch.set_num_threads(1)
    values, costs = torch.randn(elements) / 20, {}
    for compressor in (
        compressors.block_topk(0.01),
        compressors.block_random(0.01),
        compressors.block_threshold(0.9),  # of norms about 0.8
        compressors.topk_threshold(0.13),
        compressors.topk(0.01),
        compressors.randomk(0.01),
        compressors.dgc(0.01),
        *(compressors.sidco(0.01, kind) for kind in ("exponential", "gamma", "pareto")),
        compressors.adaptive(0.01),
        compressors.eight_bit(),
        compressors.inceptionn(),
        compressors.sketch(),
        compressors.ef_sign(),
        compressors.signum(),
    ):
        state, seconds = ParameterState("p"), []
        for _ in range(runs):
            gradient = values.clone()
            start = time.thread_time()
            split_by(compressor, gradient, state)
            seconds.append(time.thread_time() - start)
        costs[repr(compressor)] = min(seconds)
    return costs


def plot(results: dict[str, Any], path: Path) -> None:
    """Held-out loss over steps: a row for each task, a column for each ratio.

    The scale is that of the runs that learn; of others it shows where they leave it.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    from omnihvd.bench.plots import hosts_text, plain_numbers

    tasks = results["tasks"]
    size = (13, 3.9 * len(tasks) + 1.1)
    figure, grid = pyplot.subplots(
        *(len(tasks), len(RATIOS)), figsize=size, squeeze=False, sharey="row", layout="constrained"
    )
    for row, (task, runs) in zip(grid, tasks.items()):
        plain = next(run for run in runs if run["kind"] == "none")
        low = min(loss for run in runs for loss in losses_of(run))
        high = 1.5 * losses_of(plain)[0]
        for axes, ratio in zip(row, RATIOS):
            axes.plot(*zip(*plain["losses"]), color="#BBBBBB", linewidth=6, label="none")
            for run in runs:
                if run["kind"] in KINDS and run["ratio"] == ratio:
                    _draw(axes, run, high)
            title = f"{task} ({TASKS[task].megabytes} MB), {ratio:.0%} kept"
            axes.set(title=title, xlabel="step", yscale="log")
            axes.set_ylim(0.9 * low, 1.15 * high)
            axes.grid(alpha=0.3)
            plain_numbers(axes)
        row[0].set_ylabel("held-out loss (nats)")
    handles, labels = grid[0][-1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8)
    network = hosts_text(results["hosts"], 1, results["rate"])
    figure.suptitle(f"block compressors: {', '.join(tasks)}; float32; {network}")
    figure.savefig(path, dpi=110)


def losses_of(run: dict[str, Any]) -> list[float]:
    return [loss for _, loss in run["losses"] if math.isfinite(loss)]


def _draw(axes: Any, run: dict[str, Any], high: float) -> None:
    color = COLORS[run["kind"]]
    style = "--" if run["warm_up"] else "-" if run["error_feedback"] else ":"
    label = run["kind"] + run["variant"]
    every = (2 * KINDS.index(run["kind"]), 8)  # markers of curves that coincide lie side by side
    axes.plot(
        *zip(*run["losses"]),
        **{"linestyle": style, "color": color, "label": label, "linewidth": 1.4},
        **{"marker": MARKERS[run["kind"]], "markevery": every, "markersize": 5},
        markerfacecolor="none",
    )
    losses = losses_of(run)
    if len(losses) < len(run["losses"]) or losses[-1] > high:
        step = next(step for step, loss in run["losses"] if not loss <= high)
        axes.annotate(
            f"{label}: diverges",
            **{"xy": (step, 1.1 * high), "xytext": (step + 190, 0.9 * high)},
            **{"color": color, "fontsize": 8, "arrowprops": {"arrowstyle": "->", "color": color}},
            **{"bbox": {"color": "white", "pad": 0.5}, "zorder": 5},
        )


def table(results: dict[str, Any]) -> str:
    """Medians and shares a person wants to see, of all runs."""
    lines = ["processor ms to compress 100 MB:"]
    lines += [f"  {name:54s} {cost * 1e3:6.1f}" for name, cost in results["selection"].items()]
    for task, runs in results["tasks"].items():
        by_kind = {run["kind"]: run for run in runs}
        dense = by_kind.get("none")
        lines.append(
            f"\n{task}\n{'':36s} {'loss':>7s} {'vs none':>8s} {'kept':>6s} {'kB/step':>8s} "
            f"{'ms/step':>8s} {'select':>7s} {'of saved':>8s}"
        )
        for run in runs:
            loss, step = run["losses"][-1][1], statistics.median(run["step_seconds"])
            line = f"{run['name']:36s} {loss:7.4f} "
            line += f"{loss / dense['losses'][-1][1] - 1:+8.1%} " if dense else " " * 9
            line += f"{run['kept']:6.1%} {run['bytes'] / 1e3:8.0f} {step * 1e3:8.1f} "
            line += f"{run['select_seconds'] * 1e3:7.2f} "
            if dense and run["kind"] in KINDS:
                saved = statistics.median(dense["step_seconds"]) - step
                line += f"{run['select_seconds'] / saved:8.1%}" if saved > 0 else "    none"
            lines.append(line)
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--only", default="", help="of the runs' names, a regular expression")
    parser.add_argument("--timeout", type=float, default=3600, help="seconds for one job")
    parser.add_argument("--output", type=Path, default=RESULTS / "compression.json")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        return worker(arguments)
    RESULTS.mkdir(exist_ok=True)
    results = {
        "hosts": HOSTS,
        "rate": RATE,
        "cores": os.cpu_count(),
        "steps": arguments.steps,
        "selection": selection_cost(),
        "tasks": {task: list(measure(task, arguments)) for task in arguments.task},
    }
    arguments.output.write_text(json.dumps(results) + "\n")
    plot(results, arguments.output.with_suffix(".png"))
    print(table(results))
    return None


if __name__ == "__main__":
    main()
