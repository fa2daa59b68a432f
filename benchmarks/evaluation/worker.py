"""On each rank of a job: trains the pieces it is given, and writes one file of JSON for each."""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import horovod.torch as hvd
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import omnihvd
from benchmarks.evaluation.methods import methods, rate
from benchmarks.evaluation.tasks import TASKS, Task
from omnihvd.compressors import counters


def train(task: Task, method: str, seed: int, steps: int) -> dict[str, Any]:
    """What run.py says of a piece."""
    torch.manual_seed(seed)
    model = task.model()
    hvd.broadcast_parameters(model.state_dict(), 0)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), rate(method, task)),
        model.named_parameters(),
        methods()[method](),
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    counters.reset()
    figures, seconds, curve = omnihvd.Statistics(), [], []
    kept = [0.0, 0.0]
    hvd.barrier()
    for step in range(steps):
        start = time.perf_counter()
        inputs, targets = task.batch(seed, step)
        optimizer.zero_grad()
        task.loss(model(inputs), targets).backward()
        optimizer.step()
        seconds.append(time.perf_counter() - start)
        schedule.step()
        if step == 20:
            kept = [counters.stats()["kept_elements"], counters.stats()["elements"]]
        if (step + 1) % max(1, steps // 10) == 0:
            curve.append([step + 1, _quality(task, model)])
    sums, cost = figures.read(), counters.stats()
    seen = cost["elements"] - kept[1]
    return {
        "measure": task.measure,
        "curve": curve,
        "quality": curve[-1][1],
        "gradient_bytes": sum(4 * p.numel() for p in model.parameters()),
        "bytes": sums["bytes_sent"] / steps,
        "step_seconds": statistics.median(seconds),
        "compress_seconds": cost["seconds"] / steps,
        "kept_after_20": (cost["kept_elements"] - kept[0]) / seen if seen else 1.0,
    }


def _quality(task: Task, model: Any) -> float:
    model.eval()
    with torch.no_grad():
        inputs, targets = task.held_out
        outputs = torch.cat([model(part) for part in inputs.split(500)])
    model.train()
    return task.quality(outputs, targets)


def main() -> None:
    """argv: folder, task, steps (0: the task's), minutes, and pieces as method:seed."""
    folder, name, steps, minutes, *pieces = sys.argv[1:]
    start = time.monotonic()
    torch.set_num_threads(1)
    hvd.init()
    task = TASKS[name](hvd.rank(), hvd.size())
    for piece in pieces:
        method, seed = piece.rsplit(":", 1)
        spent = hvd.broadcast_object(time.monotonic() - start)
        if spent > 60 * float(minutes):
            break
        load = os.getloadavg()[0]
        measured = train(task, method, int(seed), int(steps) or task.steps)
        if hvd.rank() == 0:
            entry = {"task": name, "method": method, "seed": int(seed), "ranks": hvd.size()}
            file = Path(folder) / f"{name}-{method.replace(' ', '_')}-{seed}.json"
            file.write_text(json.dumps({**entry, "load": load, **measured}) + "\n")
            print(f"{name:8s} {method:12s} {seed} {measured['quality']:.4f}", flush=True)


main()
