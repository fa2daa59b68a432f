"""Hard threshold against Top-k at equal total budgets, in trainings with error feedback.

    python benchmarks/total_budget.py [--task digits words ratings] [--seeds 3]

Sahu et al., "Rethinking gradient sparsification as total error minimization" (NeurIPS 2021): for a
given number of elements in a whole training, rather than in each step, a hard threshold leaves the
smallest total error, the sum over steps of |e|^2, where e is the residual of error feedback. So
each task of evaluation/ is trained on two ranks by topk_threshold(task.threshold), then by topk()
and by global_topk() at the ratio that sends as many elements in all. topk() has that ratio of each
parameter, global_topk() one threshold for all parameters, as the hard threshold is. Writes
results/total_budget.json: by task, seed and method, the share of elements sent, a rank's
total_error (means over both ranks), and the quality on held-out data at the end.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from benchmarks import stamps  # noqa: E402
from benchmarks.bench.lab_processes import mpirun_env  # noqa: E402
from benchmarks.bench.source import source  # noqa: E402

RESULT = Path(__file__).parent / "results" / "total_budget.json"
RANKS = 2
STREAM = {"OMNIHVD_WAY": "stream", "OMNIHVD_MIN_BYTES": "1024"}


def worker(name: str, seeds: int) -> None:
    """On each rank; rank 0 prints the entries as its last line."""
    import horovod.torch as hvd
    import torch

    from benchmarks.evaluation import worker as evaluation
    from benchmarks.evaluation.tasks import TASKS
    from omnihvd import OmniReduce
    from omnihvd.compression import counters

    torch.set_num_threads(1)
    hvd.init()
    task = TASKS[name](hvd.rank(), hvd.size())
    given = {"optimizer": "sgd", "points": 1, "in_lab": False}

    def train(method: str, compressor: Any, seed: int) -> dict[str, Any]:
        error = 0.0

        def look() -> None:
            nonlocal error
            rests = [state["rest"] for state in compressor.state_dict().values()]
            error += sum(float(rest.square().sum()) for rest in rests if rest is not None)

        found = evaluation.train(
            *(task, method, lambda: compressor, seed, task.steps, given), follow=look
        )
        counted = counters.stats()
        both = torch.tensor([counted["kept_elements"] / counted["elements"], error])
        share, error = hvd.allreduce(both.double(), name="share and error").tolist()
        quality = found["curve"][-1][1] if hvd.rank() == 0 else 0.0
        entry = {"task": name, "seed": seed, "method": method, "sent": share}
        return {**entry, "total_error": error, "quality": quality}

    entries = []
    for seed in range(seeds):
        threshold = train("topk_threshold", OmniReduce.topk_threshold(task.threshold), seed)
        entries.append(threshold)
        for method, made in (("topk", OmniReduce.topk), ("global_topk", OmniReduce.global_topk)):
            entries.append(train(method, made(threshold["sent"]), seed))
    if hvd.rank() == 0:
        print(json.dumps(entries), flush=True)


def measure(name: str, seeds: int) -> list[dict[str, Any]]:
    own = [sys.executable, __file__, "--worker", "--task", name, "--seeds", str(seeds)]
    env = {**mpirun_env(RANKS), **STREAM, "OMPI_MCA_mpi_yield_when_idle": "1"}
    command = ["mpirun", "--oversubscribe", "-np", str(RANKS), *own]
    done = subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True)
    entries: list[dict[str, Any]] = json.loads(done.stdout.strip().splitlines()[-1])
    return entries


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", nargs="+", default=["digits", "words", "ratings"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return worker(args.task[0], args.seeds)
    results = stamps.kept(RESULT)
    for name in args.task:
        about = source()
        found = [{**about, **entry} for entry in measure(name, args.seeds)]
        results = [entry for entry in results if entry["task"] != name] + found
        RESULT.write_text(json.dumps({**stamps.facts(), "results": results}, indent=1) + "\n")
        for entry in found:
            print(entry, flush=True)
    return None


if __name__ == "__main__":
    main()
