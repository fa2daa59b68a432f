"""A step of real training per way to reduce: the language model on hosts with shaped links.

    sudo python benchmarks/training.py [--hosts 4] [--rate 1gbit] [--steps 30]

Runs examples/pytorch_language_model.py with plain Horovod, with its fp16 compression and with
OmniReduce, one rank a host, from the same seed. Horovod has the fastest of Open MPI's settings in
benchmarks/bench/settings.py, found in short runs. Fails unless OmniReduce's losses are plain
Horovod's. Writes results/training.json, with every step's time on rank 0 and every loss, and its
plot, training.png.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from benchmarks.bench.command import machine  # noqa: E402
from benchmarks.bench.lab import Host, Lab  # noqa: E402
from benchmarks.bench.settings import AS_IT_IS, HOROVOD, Setting  # noqa: E402

EXAMPLE = ROOT / "examples" / "pytorch_language_model.py"
RESULTS = Path(__file__).parent / "results"
STYLES = {  # label, colour, line
    "none": ("Horovod at its best", "#D55E00", "-"),
    "fp16": ("the same, fp16", "#E69F00", "--"),
    "omnireduce": ("omnihvd", "#0072B2", "-"),
}
COMPRESSIONS = ("none", "fp16", "omnireduce")
WARM_UP = 5  # steps not counted
TRIAL_STEPS = WARM_UP + 4  # of a setting
TOLERANCE = 1e-4  # of a loss, relative: sums in another order differ in their last bits


def train(
    lab: Lab,
    hosts: Sequence[Host],
    compression: str,
    steps: int,
    timeout: float,
    setting: Setting = AS_IT_IS,
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        before = sum(traffic.sent for traffic in lab.traffic())
        lab.mpirun(
            [
                *(sys.executable, str(EXAMPLE), "--compression", compression),
                *("--steps", str(steps), "--json", str(report)),
            ],
            hosts=hosts,
            mca=setting.mca,
            env={"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PATH": os.environ["PATH"]},
            timeout=timeout,
            stdout=subprocess.DEVNULL,
        )
        result: dict[str, Any] = json.loads(report.read_text())
    sent = sum(traffic.sent for traffic in lab.traffic()) - before
    counted = result["step_seconds"][WARM_UP:]
    result["median_s"] = statistics.median(counted)
    result["median_wait_s"] = statistics.median(result["wait_seconds"][WARM_UP:])
    result["link_bytes"] = sent / steps / len(hosts)  # a host and step, start-up included
    result["setting"] = setting.name
    return result


def at_its_best(
    lab: Lab, hosts: Sequence[Host], compression: str, steps: int, timeout: float
) -> dict[str, Any]:
    """Horovod's training in the fastest of Open MPI's settings."""
    tried = {
        setting: train(lab, hosts, compression, TRIAL_STEPS, timeout, setting)["median_s"]
        for setting in HOROVOD
    }
    best = min(HOROVOD, key=lambda setting: tried[setting])
    result = train(lab, hosts, compression, steps, timeout, best)
    return {**result, "tried": {setting.name: seconds for setting, seconds in tried.items()}}


def largest_difference(right: list[float], losses: list[float]) -> float:
    """The largest relative difference of losses, step by step."""
    return max(abs(a - b) / abs(a) for a, b in zip(right, losses))


def check_losses(results: dict[str, dict[str, Any]]) -> None:
    worst = largest_difference(results["none"]["losses"], results["omnireduce"]["losses"])
    if worst > TOLERANCE:
        raise SystemExit(f"losses differ by {worst:.2g}: OmniReduce trains something else")
    print(f"largest relative difference of a loss to plain Horovod's: {worst:.1g}")


def plot(content: dict[str, Any], path: Path) -> None:
    """Plots the JSON file's results."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    from benchmarks.bench.plots import hosts_text

    results = content["results"]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4.4), layout="constrained")
    for name, result in results.items():
        label, color, line = STYLES[name]
        ends = list(itertools.accumulate(result["step_seconds"]))
        left.plot(ends, result["losses"], color=color, linestyle=line, label=label)
        waits, whole = 1e3 * result["median_wait_s"], 1e3 * result["median_s"]
        right.bar(label, waits, color=color)
        right.bar(label, whole - waits, bottom=waits, color=color, alpha=0.4)
        right.text(label, whole, f"{whole:.0f}", ha="center", va="bottom")
    left.set(xlabel="seconds of training", title="loss (mean of the ranks)")
    left.grid(alpha=0.3)
    left.legend()
    right.set(title="a step, ms (pale: computing; full: waiting for the sum)")
    megabytes = results["none"]["link_bytes"] / 1e6
    hosts = content["hosts"]
    figure.suptitle(
        f"language model, {megabytes:.0f} MB sent a step by plain Horovod; "
        f"{hosts_text(hosts, 1, content['rate'])}"
    )
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rate", default="1gbit", help="of each link, each way")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--timeout", type=float, default=600, help="seconds, of each run")
    parser.add_argument("--output", type=Path, default=RESULTS / "training.json")
    args = parser.parse_args()
    if args.steps < 2 * WARM_UP:
        parser.error(f"--steps: at least {2 * WARM_UP}")

    results = {}
    with Lab(args.hosts, rate=args.rate) as lab:
        for compression in COMPRESSIONS:
            measure = train if compression == "omnireduce" else at_its_best
            result = measure(lab, lab.hosts, compression, args.steps, args.timeout)
            results[compression] = result
            name = f"{compression} {result['setting']}".strip()
            print(
                f"{name}: {1e3 * result['median_s']:.0f} ms a step; "
                f"{1e3 * result['median_wait_s']:.0f} ms wait; "
                f"{result['link_bytes'] / 1e6:.1f} MB sent a host and step",
                flush=True,
            )
    check_losses(results)
    ours = results["omnireduce"]["median_s"]
    for name in ("none", "fp16"):
        print(f"OmniReduce is {results[name]['median_s'] / ours:.1f} times as fast as {name}")
    content = {**machine(), "hosts": args.hosts, "rate": args.rate, "results": results}
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(json.dumps(content, indent=1))
    plot(content, args.output.with_suffix(".png"))


if __name__ == "__main__":
    main()
