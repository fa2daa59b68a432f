"""On each rank of a Horovod job: trains a model by the methods that it is given (run.py).

    horovodrun -np 4 python examples/models/worker.py '{"model": "ncf", "methods": ["omnireduce"]}'

Rank 0 prints its progress in lines, and writes its results into a JSON file.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Callable

import horovod.torch as hvd
import torch
import training
from compared import WAYS, WITHOUT
from registry import MODELS
from task import Task, gradient_bytes

FIRST = 20  # steps that tell what a job pays for its beginning


def one(task: Task, method: str, seed: int, given: dict[str, Any]) -> dict[str, Any]:
    model = training.drawn_model(task, seed)
    hvd.broadcast_parameters(model.state_dict(), 0)
    plain = task.optimizer(model)
    optimizer = hvd.DistributedOptimizer(plain, model.named_parameters(), WAYS[method].make())
    optimizer.state.update(plain.state)  # Horovod begins Adagrad's anew, from zeros
    steps = given.get("steps") or task.steps

    def tell(step: int, loss: float) -> None:
        if hvd.rank() == 0:
            print(f"step {step} {steps} {method} {seed} {loss:.4f}", flush=True)

    hvd.barrier()
    before = training.sent()
    with ExitStack() as stack:

        def wait() -> None:
            optimizer.synchronize()
            stack.close()
            stack.enter_context(optimizer.skip_synchronize())

        points = given.get("points", 0)
        trained = training.train(task, model, optimizer, wait, seed, steps, points, tell)
    hvd.barrier()
    bytes_sent = training.sent() - before
    warm_up = min(given.get("warm_up", 5), steps - 1)
    return {
        **{"method": method, "seed": seed, "steps": steps, "ranks": hvd.size()},
        "first_s": statistics.fmean(trained.seconds[:FIRST]),
        "step_s": statistics.median(trained.seconds[warm_up:]),
        "wait_s": statistics.median(trained.waits[warm_up:]),
        "bytes": round(bytes_sent / steps),
        "gradient_bytes": gradient_bytes(model),
        "losses": hvd.allreduce(torch.tensor(trained.losses), name="losses").tolist(),
        "curve": trained.curve,
        "reached_s": trained.reached_s,
    }


def calibrate(counts: list[int]) -> list[list[float]]:
    """Seconds, medians, of a sum of so many zeros, of as many ones, and of a copy of as many."""

    def median(work: Callable[[], Any]) -> float:
        seconds = []
        for _ in range(25):
            hvd.barrier()
            start = time.perf_counter()
            work()
            seconds.append(time.perf_counter() - start)
        return statistics.median(seconds[5:])

    found = []
    for count in counts:
        zeros, ones, other = torch.zeros(count), torch.ones(count), torch.ones(count)
        sums = [
            median(lambda x=x: hvd.allreduce_(x, name=f"sum {len(x)}", op=hvd.Sum))  # type: ignore
            for x in (zeros, torch.ones(count))
        ]
        found.append([*sums, median(lambda: other.copy_(ones))])  # noqa: B023
    return found


def take_a_core() -> None:
    """Pins each rank to one core where ranks share cores, as though its host had that share of a
    core. Otherwise Linux may keep three of four ranks on one of two cores for many steps, and all
    ranks wait."""
    cores = sorted(os.sched_getaffinity(0))
    rank, ranks = (int(os.environ[f"OMPI_COMM_WORLD_{what}"]) for what in ("RANK", "SIZE"))
    if ranks > len(cores):
        os.sched_setaffinity(0, {cores[rank % len(cores)]})


def main() -> None:
    """argv[1]: a dictionary in JSON. model, size, data: of the task; methods, seeds, steps, points:
    of trainings; warm_up: untimed steps at the beginning; calibrate: counts of floats, with
    omnihvd if take_over; timed: ranks keep to a core; file: what to write."""
    given = json.loads(sys.argv[1])
    if given.get("timed"):
        take_a_core()
    if given.get("take_over") or set(given.get("methods", [])) - set(WITHOUT):
        import omnihvd  # noqa: F401, before hvd.init()
    torch.set_num_threads(1)
    hvd.init()
    data = Path(given["data"]) if given.get("data") else None
    found: list[dict[str, Any]] = []
    if given.get("calibrate"):
        found.append({"calibrated": calibrate(given["calibrate"])})
    if given.get("methods"):
        size = given.get("size", "default")
        task = MODELS[given["model"]](data, size, hvd.rank(), hvd.size())
        if hvd.rank() == 0:
            print(f"data: {task.source}", flush=True)
        for seed in given.get("seeds", [0]):
            for method in given["methods"]:
                found.append(one(task, method, seed, given))
    if hvd.rank() == 0 and given.get("file"):
        Path(given["file"]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
