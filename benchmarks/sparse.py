"""Sparse gradients of an embedding: time and memory of four ways to sum them, on shaped links.

    sudo python benchmarks/sparse.py [--ranks 2 4 8] [--rate 1gbit]

A table has 1,000,000 x 64 float32 (256 MB). Each rank's batch looks up 8192 rows, drawn with Zipf
frequencies; nn.Embedding(sparse=True), SGD, hvd.DistributedOptimizer:

  allgather        Horovod's own path: indices and values of all ranks, duplicates and all
  dense            Horovod with sparse_as_dense=True
  dense omnihvd    the same with compression=OmniReduce
  rows omnihvd     compression=OmniReduce: row numbers gathered, then the union of the rows summed,
                   or the merged rows gathered where ranks share few

Without omnihvd, Open MPI polls and yields, and the faster counts.

A sample is the slowest rank's time from the backward pass to the end of optimizer.step(). Memory is
the largest growth of a rank's peak resident memory from before the first step. All four must end
with the same table. Writes results/sparse.json and its plot, sparse.png.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
ROWS, WIDTH, LOOK_UPS = 1_000_000, 64, 8192
WAYS = {  # name: (with omnihvd, sparse_as_dense)
    "allgather": (False, False),
    "dense": (False, True),
    "dense omnihvd": (True, True),
    "rows omnihvd": (True, False),
}
STYLES = {  # label, colour, marker: as of the same libraries in benchmarks.bench.plots
    "allgather": ("Horovod's allgather", "#CC79A7", "^"),
    "dense": ("Horovod, dense", "#D55E00", "s"),
    "dense omnihvd": ("omnihvd, dense", "#56B4E9", "D"),
    "rows omnihvd": ("omnihvd, sum of the union's rows", "#0072B2", "o"),
}
RESULTS = Path(__file__).parent / "results"


def words(rank: int, step: int) -> Any:
    import torch

    generator = torch.Generator().manual_seed(1000 * step + rank)
    uniform = torch.rand(LOOK_UPS, generator=generator, dtype=torch.float64)
    return (ROWS**uniform).long() - 1  # P(row <= k) = log(k + 1) / log(ROWS): Zipf


def work(way: str, steps: int, output: Path) -> None:
    """Runs on each rank; rank 0 writes the result."""
    ours, dense = WAYS[way]
    import horovod.torch as hvd
    import torch

    compression = hvd.Compression.none
    if ours:
        import omnihvd

        compression = omnihvd.OmniReduce
    hvd.init()
    torch.set_num_threads(1)
    table = torch.nn.Embedding(ROWS, WIDTH, sparse=True)
    torch.nn.init.zeros_(table.weight)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(table.parameters(), lr=1.0),
        named_parameters=table.named_parameters(),
        compression=compression,
        sparse_as_dense=dense,
        op=hvd.Sum,
    )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    samples = []
    for step in range(steps + 1):
        optimizer.zero_grad()
        loss = table(words(hvd.rank(), step)).sum()
        hvd.barrier()
        start = time.perf_counter()
        loss.backward()
        optimizer.step()
        samples.append(max(hvd.allgather_object(time.perf_counter() - start)))
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    grown = max(hvd.allgather_object(grown)) * 1024
    if hvd.rank() == 0:
        weight = table.weight.detach()
        check = [float(weight.double().sum()), float(weight[0, 0])]
        report = {"samples": samples[1:], "memory_bytes": grown, "check": check}
        output.write_text(json.dumps(report))


def at_its_best(lab: Any, way: str, steps: int, timeout: float) -> dict[str, Any]:
    from benchmarks.bench.settings import AS_IT_IS, WAITS

    ours, _ = WAYS[way]
    settings = (AS_IT_IS,) if ours else WAITS
    results = [measure(lab, way, steps, timeout, setting) for setting in settings]
    return min(results, key=lambda result: result["median_s"])


def measure(lab: Any, way: str, steps: int, timeout: float, setting: Any) -> dict[str, Any]:
    from benchmarks.bench.lab import Lab

    assert isinstance(lab, Lab)
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "result.json"
        before = sum(traffic.sent for traffic in lab.traffic())
        lab.mpirun(
            [
                *(sys.executable, __file__, "--work", way),
                *("--steps", str(steps), "--output", str(output)),
            ],
            mca=setting.mca,
            env={"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1"},
            timeout=timeout,
            stdout=subprocess.DEVNULL,
        )
        result: dict[str, Any] = json.loads(output.read_text())
    sent = sum(traffic.sent for traffic in lab.traffic()) - before
    result["link_bytes"] = sent / len(lab.hosts) / (steps + 1)  # a host and step
    result["median_s"] = statistics.median(result["samples"])
    result["setting"] = setting.name
    return result


def plot(content: dict[str, Any], path: Path) -> None:
    """Plots the JSON file's results."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    from benchmarks.bench.plots import plain_numbers, rate_text

    results = content["results"]
    figure, grid = pyplot.subplots(1, 2, figsize=(10, 4.6), layout="constrained")
    ranks = [int(n) for n in results]
    for axes, figure_of, title in (
        (grid[0], lambda r: 1e3 * r["median_s"], "a step, ms"),
        (grid[1], lambda r: r["memory_bytes"] / 1e6, "growth of a rank's peak memory, MB"),
    ):
        for way, (label, color, marker) in STYLES.items():
            ys = [figure_of(r[way]) for r in results.values()]
            axes.plot(ranks, ys, color=color, marker=marker, markerfacecolor="none", label=label)
        axes.set(xscale="log", yscale="log", xlabel="ranks, one a host", title=title)
        axes.set_xticks(ranks, [str(n) for n in ranks])
        axes.set_xticks([], minor=True)
        axes.grid(alpha=0.3)
        plain_numbers(axes)
    figure.legend(*grid[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    figure.suptitle(
        f"gradients of an embedding of {4 * ROWS * WIDTH / 1e6:.0f} MB, {LOOK_UPS} Zipf look-ups a "
        f"rank; {rate_text(content['rate'])}"
    )
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8], help="one a host")
    parser.add_argument("--rate", default="1gbit", help="of each link, each way")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--timeout", type=float, default=600, help="seconds, of each run")
    parser.add_argument("--output", type=Path, default=RESULTS / "sparse.json")
    parser.add_argument("--work", choices=WAYS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        work(args.work, args.steps, args.output)
    else:
        compare(args)


def compare(args: argparse.Namespace) -> None:
    from benchmarks.bench.command import machine
    from benchmarks.bench.lab import Lab
    from benchmarks.bench.report import markdown

    results: dict[str, dict[str, Any]] = {}
    rows = []
    for ranks in args.ranks:
        results[str(ranks)] = {}
        with Lab(ranks, rate=args.rate) as lab:
            for way in WAYS:
                result = at_its_best(lab, way, args.steps, args.timeout)
                results[str(ranks)][way] = result
                figures = [result["median_s"] * 1e3, result["memory_bytes"] / 1e6]
                figures.append(result["link_bytes"] / 1e6)
                rows.append([str(ranks), way, *(f"{figure:.1f}" for figure in figures)])
                print("ranks {}, {}: {} ms, {} MB, {} MB sent a host".format(*rows[-1]), flush=True)
        checks = [result["check"] for result in results[str(ranks)].values()]
        if any(abs(a - b) > 1e-6 * abs(a) for check in checks for a, b in zip(checks[0], check)):
            raise SystemExit(f"the tables differ: {checks}")
    print(markdown(["ranks", "way", "step, ms", "peak memory, MB", "sent, MB"], rows))
    content = {**machine(), "rate": args.rate, "results": results}
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(json.dumps(content, indent=1))
    plot(content, args.output.with_suffix(".png"))


if __name__ == "__main__":
    main()
