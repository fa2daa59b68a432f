"""Does the certificate of compression warn before the loss does?

    python benchmarks/certificate.py [--seeds 3]
    python benchmarks/certificate.py --time     # what it costs a step, in two minutes

Trains the language model of evaluation/ (words) on two ranks, without compression and by each
method with its certificate; methods with a ratio again with a floor. Two alarms, both on WINDOW
steps, and neither needs a training without compression to compare with:

    gauge   the cosine over these steps is below ALARM
    loss    the mean training loss is above the lowest before it by RISE

Writes results/certificate.json: for each training its alarms (steps from 1; null: none), the loss
of its last WINDOW steps, the cosine over all steps, and the share of elements that it sent.

--time: in one job a training by TIMED and one with its certificate take turns. The difference is
the median of the turns' differences, in pairs. Its interval leaves out 16 of 48 turns at each end,
so it has the true median with 97%. Stands in the same file as `time`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from benchmarks.bench.command import machine  # noqa: E402
from benchmarks.bench.lab_processes import mpirun_env  # noqa: E402

RESULT = Path(__file__).parent / "results" / "certificate.json"
RANKS, STEPS = 2, 150
STREAM = {"OMNIHVD_WAY": "stream", "OMNIHVD_MIN_BYTES": "1024"}
WINDOW, ALARM, RISE = 20, 0.1, 0.05
FLOOR = 0.9
TIMED, TURNS, TURN_STEPS, OUTSIDE = "topk(0.01)", 48, 50, 16
OPTIMIZERS = [(0.3, 0.9), (1.0, 0.0), (2.0, 0.0)]  # rate, momentum
METHODS = ["block_random(0.02)", "power_sgd(1)", "topk(0.001)", "block_topk(0.01)", "topk(0.01)"]


def worker(seeds: int) -> None:
    """On each rank; rank 0 prints the entries as its last line."""
    import horovod.torch as hvd
    import torch

    import omnihvd
    from benchmarks.evaluation.tasks import TASKS
    from omnihvd import OmniReduce
    from omnihvd.compression.certificate import Products

    torch.set_num_threads(1)
    hvd.init()
    task = TASKS["words"](hvd.rank(), hvd.size())

    def train(rate: float, momentum: float, compression: Any, seed: int) -> dict[str, Any]:
        torch.manual_seed(seed)
        model = task.model()
        hvd.broadcast_parameters(model.state_dict(), 0)
        plain = torch.optim.SGD(model.parameters(), lr=rate, momentum=momentum)
        optimizer = hvd.DistributedOptimizer(plain, model.named_parameters(), compression)
        figures, whole = omnihvd.Statistics(), omnihvd.Statistics()
        losses: list[float] = []
        seen: list[Products] = []
        gauge = warned = None
        lowest = float("inf")
        for step in range(1, STEPS + 1):
            inputs, targets = task.batch(seed, step)
            optimizer.zero_grad()
            loss = task.loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            losses.append(hvd.allreduce(loss.detach(), name="loss").item())
            found = figures.read(reset=True)["compression"]
            seen.append(Products(*(found[f"certified_{name}"] for name in Products._fields)))
            if step < WINDOW + 1:  # a step's blocks are known after the next
                continue
            cosine = Products(*map(sum, zip(*seen[-WINDOW:]))).cosine()
            if gauge is None and cosine is not None and cosine < ALARM:
                gauge = step
            mean = statistics.mean(losses[-WINDOW:])
            if warned is None and not mean <= (1 + RISE) * lowest:
                warned = step
            lowest = min(lowest, mean)
        found = whole.read()["compression"]
        sent = found["kept_elements"] / found["elements"] if found["elements"] else 1.0
        last = statistics.mean(losses[-WINDOW:])
        alarms = {"gauge": gauge, "loss": warned}
        return {**alarms, "last": last, "cosine": found["cosine"], "sent": sent}

    results = []
    for rate, momentum in OPTIMIZERS:
        for method in ["none", *METHODS]:
            made = hvd.Compression.none
            tried: list[tuple[float | None, Any]] = [(None, made)]
            if method != "none":
                made = eval(f"OmniReduce.{method}", {"OmniReduce": OmniReduce})
                tried = [(None, made.with_certificate)]
                if hasattr(made.config.rule, "ratio"):
                    tried.append((FLOOR, lambda made=made: made.with_floor(FLOOR)))
            for floor, make in tried:
                for seed in range(seeds):
                    compression = make if method == "none" else make()
                    about = {"rate": rate, "momentum": momentum, "method": method, "floor": floor}
                    results.append(
                        {**about, "seed": seed, **train(rate, momentum, compression, seed)}
                    )
                    if hvd.rank() == 0:
                        print(results[-1], file=sys.stderr, flush=True)
    if hvd.rank() == 0:
        print(json.dumps(results), flush=True)


def timed_worker() -> None:
    """On each rank; rank 0 prints the median step of each turn, without and with the certificate.
    A first turn does not count."""
    import horovod.torch as hvd
    import torch

    from benchmarks.evaluation.tasks import TASKS
    from omnihvd import OmniReduce

    torch.set_num_threads(1)
    hvd.init()
    task = TASKS["words"](hvd.rank(), hvd.size())
    trained: list[tuple[Any, Any, list[float]]] = []
    for certified in (False, True):
        torch.manual_seed(0)
        model = task.model()
        hvd.broadcast_parameters(model.state_dict(), 0)
        made = eval(f"OmniReduce.{TIMED}", {"OmniReduce": OmniReduce})
        (rate, momentum), *_ = OPTIMIZERS
        plain = torch.optim.SGD(model.parameters(), lr=rate, momentum=momentum)
        compression = made.with_certificate() if certified else made
        optimizer = hvd.DistributedOptimizer(plain, model.named_parameters(), compression)
        trained.append((model, optimizer, []))
    for turn in range(1 + TURNS):
        for model, optimizer, medians in trained[:: 1 if turn % 2 else -1]:
            seconds = []
            for step in range(turn * TURN_STEPS, (turn + 1) * TURN_STEPS):
                inputs, targets = task.batch(0, step)
                start = time.perf_counter()
                optimizer.zero_grad()
                task.loss(model(inputs), targets).backward()
                optimizer.step()
                seconds.append(time.perf_counter() - start)
            medians.append(statistics.median(seconds))
    if hvd.rank() == 0:
        print(json.dumps([medians[1:] for *_, medians in trained]), flush=True)


def cost(without: list[float], with_it: list[float]) -> dict[str, Any]:
    """The certificate's cost, by the medians of TURNS turns."""
    differences = sorted(b - a for a, b in zip(without, with_it))
    return {
        "method": TIMED,
        "without": without,
        "with": with_it,
        "difference_s": statistics.median(differences),
        "interval_s": [differences[OUTSIDE], differences[-1 - OUTSIDE]],
    }


def of_job(*words: str) -> Any:
    """Runs this script in a job; returns what rank 0 prints in its last line."""
    env = {**mpirun_env(RANKS), **STREAM, "OMPI_MCA_mpi_yield_when_idle": "1"}
    own = [sys.executable, __file__, *words]
    command = ["mpirun", "--oversubscribe", "-np", str(RANKS), *own]
    done = subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.strip().splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--time", action="store_true")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return timed_worker() if args.time else worker(args.seeds)
    about, content = machine(), json.loads(RESULT.read_text()) if RESULT.exists() else {}
    if args.time:
        content["time"] = {**about, **cost(*of_job("--worker", "--time"))}
        low, high = (1e3 * end for end in content["time"]["interval_s"])
        difference = 1e3 * content["time"]["difference_s"]
        print(f"{TIMED}: {difference:+.2f} ms a step ({low:+.2f} to {high:+.2f})")
    else:
        content |= {**about, "results": of_job("--worker", "--seeds", str(args.seeds))}
    RESULT.write_text(json.dumps(content, indent=1) + "\n")
    return None


if __name__ == "__main__":
    main()
