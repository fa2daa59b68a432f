"""Does a training lose anything if replicas send only what changes the bfloat16 cast of a weight?

    python benchmarks/visible_changes.py --data DIR [--seeds 3] [--json FILE]

Replicas begin each round with the same weights. Each trains on examples of its own for some steps,
and its change is what that did to the weights. An outer optimizer applies the mean of all changes
(DiLoCo: Douillard et al., 2023). A change is visible where the weight, cast to bfloat16, becomes
another number, since only that alters the next forward pass (PULSELoCo: Miahi and Belilovsky,
2026, section 4). A replica keeps what is not visible, and adds it to its next change.

    dense             the mean of the gradients in each step (DDP)
    averaged          a step a round; weights are averaged
    diloco            STEPS steps a round; the outer optimizer is SGD with Nesterov's momentum
    ... visible       the same, sending visible changes only

Trains two of the models in examples/models: `bert`, from MiniLM's weights, and `lstm`, from random
ones. DIR: their data (examples/models/sources.py). All replicas are in one process, which adds
their changes itself: this tells what would be sent, and not how long that takes. FILE (default
results/visible_changes.json) has for each training the loss and the quality on held-out data, and
what shares of the elements and of the blocks of 256 were sent by a replica and by any of them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "examples" / "models")]
from registry import MODELS  # noqa: E402
from task import SIZES, Task  # noqa: E402
from training import drawn_model  # noqa: E402

from benchmarks.bench.source import source  # noqa: E402

RESULT = Path(__file__).parent / "results" / "visible_changes.json"
NAMES = ("bert", "lstm")
METHODS = ("dense", "averaged", "averaged visible", "diloco", "diloco visible")
STEPS = 10  # of a round
OUTER = {"averaged": (1.0, 0.0), "diloco": (0.7, 0.9)}  # rate, Nesterov's momentum
BLOCK = 256


class Replica:
    def __init__(self, task: Task, model: nn.Module, seed: int, steps: int) -> None:
        self.task, self.model, self.seed = task, model, seed
        self.optimizer = task.optimizer(model)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda n: task.rate(n / steps)
        )
        self.residual: Tensor | None = None

    def backward(self, step: int) -> None:
        self.optimizer.zero_grad()
        self.task.loss(self.model, self.task.batch(self.seed, step)).backward()

    def change(self, weights: Tensor, steps: range) -> Tensor:
        """All that these steps take from the weights, plus what it has kept."""
        vector_to_parameters(weights.clone(), self.model.parameters())
        for step in steps:
            self.backward(step)
            self.optimizer.step()
            self.schedule.step()
        made = weights - parameters_to_vector(self.model.parameters()).detach()
        return made if self.residual is None else made + self.residual

    def visible(self, weights: Tensor, steps: range) -> Tensor:
        made = self.change(weights, steps)
        seen = (weights - made).bfloat16() != weights.bfloat16()
        sent = torch.where(seen, made, 0.0)
        self.residual = made - sent
        return sent


def share(elements: Tensor) -> float:
    return float(elements.float().mean())


def blocks(elements: Tensor) -> Tensor:
    padding = -len(elements) % BLOCK
    return nn.functional.pad(elements, (0, padding)).view(-1, BLOCK).any(1)


def replicas_of(name: str, data: Path, size: str, count: int, seed: int) -> list[Replica]:
    made = []
    for rank in range(count):
        task = MODELS[name](data, size, rank, count)
        made.append(Replica(task, drawn_model(task, seed), seed, task.steps))
    return made


def dense(replicas: list[Replica], steps: int) -> None:
    """Leaves the weights in the first replica's model."""
    first = replicas[0]
    for step in range(steps):
        first.optimizer.zero_grad()
        for replica in replicas:  # each adds to the gradients of the others
            replica.task.loss(first.model, replica.task.batch(replica.seed, step)).backward()
        for parameter in first.model.parameters():
            if parameter.grad is not None:
                parameter.grad /= len(replicas)
        first.optimizer.step()
        first.schedule.step()


def in_rounds(replicas: list[Replica], method: str, steps: int) -> dict[str, float]:
    """Leaves the weights in the first replica's model."""
    kind, *gated = method.split()
    every = STEPS if kind == "diloco" else 1
    weights = nn.Parameter(parameters_to_vector(replicas[0].model.parameters()).detach().clone())
    rate, momentum = OUTER[kind]
    outer = torch.optim.SGD([weights], rate, momentum, nesterov=momentum > 0)
    seen: dict[str, list[float]] = {
        name: [] for name in ("sent", "sent_blocks", "any", "any_blocks")
    }
    for first in range(0, steps, every):
        mean, union = torch.zeros_like(weights.data), torch.zeros(len(weights), dtype=torch.bool)
        for replica in replicas:
            change = replica.visible if gated else replica.change
            sent = change(weights.data, range(first, min(first + every, steps)))
            mean += sent / len(replicas)
            union |= sent != 0
            seen["sent"].append(share(sent != 0))
            seen["sent_blocks"].append(share(blocks(sent != 0)))
        seen["any"].append(share(union))
        seen["any_blocks"].append(share(blocks(union)))
        weights.grad = mean
        outer.step()
    vector_to_parameters(weights.data, replicas[0].model.parameters())
    return {name: statistics.mean(values) for name, values in seen.items()}


def train(name: str, method: str, count: int, seed: int, data: Path, size: str) -> dict[str, Any]:
    torch.set_num_threads(1)
    replicas = replicas_of(name, data, size, count, seed)
    first, steps = replicas[0], replicas[0].task.steps
    found: dict[str, float] = {}
    if method == "dense":
        dense(replicas, steps)
    else:
        found = in_rounds(replicas, method, steps)
    task = first.task
    if task.higher_is_better:
        outputs, targets = task.outputs(first.model), task.held_out[1]
        quality = task.judge(outputs, targets)
        loss = float(nn.functional.cross_entropy(outputs, targets))
    else:
        quality = loss = task.quality(first.model)
    about = {"model": name, "method": method, "replicas": count, "seed": seed, "steps": steps}
    return {**about, "loss": loss, "quality": quality, **found}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder with the models' data")
    parser.add_argument("--size", choices=SIZES, default="default", help="of the models")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--replicas", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--processes", type=int, default=2, help="trainings at a time")
    parser.add_argument("--json", type=Path, default=RESULT, help="for results")
    args = parser.parse_args()
    few, *more = args.replicas
    jobs = [(m, how, few, seed) for seed in range(args.seeds) for m in NAMES for how in METHODS]
    # With more replicas: what any of them sends.
    jobs += [(m, how, n, 0) for n in more for m in NAMES for how in METHODS if "visible" in how]
    entries = []
    with ProcessPoolExecutor(args.processes, get_context("spawn")) as pool:
        for done in as_completed([pool.submit(train, *job, args.data, args.size) for job in jobs]):
            entries.append(done.result())
            print(json.dumps(entries[-1]), file=sys.stderr, flush=True)
            order = sorted(
                entries, key=lambda e: [str(e[k]) for k in ("model", "replicas", "method", "seed")]
            )
            args.json.write_text(json.dumps({**source(), "entries": order}, indent=1) + "\n")


if __name__ == "__main__":
    main()
