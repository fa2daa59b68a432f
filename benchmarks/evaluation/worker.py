"""On each rank of a job: trains the pieces it is given, and writes each into a file of JSON."""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Callable

import horovod.torch as hvd
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import omnihvd
from benchmarks.bench.source import source
from benchmarks.evaluation import methods, report
from benchmarks.evaluation.tasks import TASKS, Task
from omnihvd.compression import counters

LINK = Path("/sys/class/net/eth0/statistics/tx_bytes")


def train(
    task: Task,
    method: str,
    make: Callable[[], Any],
    seed: int,
    steps: int,
    given: dict[str, Any],
    follow: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Trains a piece; returns the entry that run.py describes. follow: called after each step."""
    torch.manual_seed(seed)
    model = task.model()
    hvd.broadcast_parameters(model.state_dict(), 0)
    optimizer = hvd.DistributedOptimizer(
        methods.optimizer(given["optimizer"], method, model, task),
        model.named_parameters(),
        make(),
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    counters.reset()
    seconds, curve = [], []
    every = steps // given["points"] if given["points"] else 0
    kept = [0.0, 0.0]
    hvd.barrier()
    before = _sent(given["in_lab"])
    for step in range(steps):
        start = time.perf_counter()
        inputs, targets = task.batch(seed, step)
        optimizer.zero_grad()
        task.loss(model(inputs), targets).backward()
        optimizer.step()
        seconds.append(time.perf_counter() - start)
        schedule.step()
        follow()
        if step == 20:
            kept = [counters.stats()["kept_elements"], counters.stats()["elements"]]
        if hvd.rank() == 0 and every and (step + 1) % every == 0:
            torch.set_num_threads(hvd.local_size())  # the others wait
            curve.append([step + 1, task.quality(task.outputs(model), task.held_out[1])])
            torch.set_num_threads(1)
    sent, cost = _sent(given["in_lab"]) - before, counters.stats()
    hvd.barrier()
    seen = cost["elements"] - kept[1]
    return {
        "curve": curve,
        "bytes": round(sent / steps),
        "step_seconds": statistics.median(seconds),
        "compress_seconds": cost["seconds"] / steps,
        "kept_after_20": (cost["kept_elements"] - kept[0]) / seen if seen else 1.0,
    }


def _sent(in_lab: bool) -> float:
    """Bytes by this host, or by this rank where there are no hosts."""
    return float(LINK.read_text() if in_lab else omnihvd.stats()["bytes_sent"])


def main() -> None:
    """argv: a dictionary in JSON, of run.py's making."""
    given = json.loads(sys.argv[1])
    start = time.monotonic()
    torch.set_num_threads(1)
    hvd.init()
    task = TASKS[given["task"]](hvd.rank(), hvd.size())
    makers = getattr(methods, given["makers"])(task)
    steps = given["steps"] or task.steps
    for method, seed in given["pieces"]:
        spent = hvd.broadcast_object(time.monotonic() - start)
        if spent > 60 * given["minutes"]:
            break
        about = source() if hvd.rank() == 0 else {}
        measured = train(task, method, makers[method], seed, steps, given)
        if hvd.rank() == 0:
            entry = {"method": method, "seed": seed, "ranks": hvd.size(), **about, **measured}
            report.add(Path(given["file"]), entry)
            end = measured["curve"][-1][1] if measured["curve"] else measured["step_seconds"]
            print(f"{given['task']:8s} {method:16s} {seed} {end:.4f}", flush=True)


if __name__ == "__main__":
    main()
