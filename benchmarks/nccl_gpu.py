"""Sums of GPU tensors through omnihvd against NCCL's own, in one run, over the same links.

    python benchmarks/nccl_gpu.py [--ranks 2] [--json FILE]        # ranks that share this GPU
    torchrun --nnodes 4 ... benchmarks/nccl_gpu.py --rate 10gbit   # on each of 4 hosts

Alone, it starts the ranks itself, on the first GPU, each as if on a host of its own: NCCL and
omnihvd then both go through TCP on the loopback device. The ranks' kernels take turns on the GPU,
and NCCL's wait there for other ranks: do not take the ratio for that of ranks with a GPU each.
Under torchrun, ranks and links are the real ones.

NCCL and omnihvd's union of blocks run in processes of their own, by turns, --rounds times each.
Each point has a communicator of its own, and is verified before and after it is timed. Samples
begin after 80 sums, when the union's capacity follows the point's density. A point is no result if
another algorithm made one of its sums, or if NCCL summed more than half as much again as the union.
`summed` is the share of the tensor that NCCL summed.

A sample is the slowest rank's time for one allreduce in place, by CUDA events; a figure is the
median of all rounds' samples, with the smallest and the largest. NCCL's time does not depend on
where the zeros are: it is measured at the first density. A point's row is printed, and --json
written, as soon as the point is measured. --rate names links that you have shaped, each way of each
host (the loopback device is one for all ranks), and adds the wire bound
(benchmarks/bench/report.py).

`lost overlap`: matrix products on another stream (--gemm, of bfloat16) take longer beside a sum
than alone by this share of the sum's time: 0: the sum costs them nothing, 1: they might have waited
for it.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from benchmarks.bench import one_gpu  # noqa: E402
from benchmarks.bench.report import limit_seconds, markdown  # noqa: E402
from omnihvd.bench.patterns import PATTERNS, Point, present_blocks  # noqa: E402

RANK_SCRIPT = Path(__file__).with_name("nccl_gpu_rank.py")
WAYS = {
    "union": {"OMNIHVD_GPU": "union", "OMNIHVD_GPU_MIN_BYTES": "0"},
    "auto": {"OMNIHVD_GPU": "auto", "OMNIHVD_GPU_MIN_BYTES": "0"},
    "nccl": {"OMNIHVD_ENABLE": "0"},
}
# On servers with several GPUs.
for name, more in {
    "union-one-level": {"OMNIHVD_HIERARCHY": "off"},
    "union-two-levels": {"OMNIHVD_HIERARCHY": "on"},
}.items():
    WAYS[name] = {**WAYS[name.split("-")[0]], **more}
UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


class BenchError(Exception):
    pass


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, nargs="+", default=[2], help="default: 2")
    parser.add_argument("--bytes", type=float, nargs="+", default=[100e6], help="of the tensors")
    parser.add_argument("--dtype", default="float32", help="bfloat16, float16, float32, float64")
    parser.add_argument("--op", choices=["sum", "avg"], default="sum")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=["union", "nccl"])
    parser.add_argument("--gemm", type=int, default=4096, help="rows of the matrices; 0: none")
    parser.add_argument("--densities", type=float, nargs="+", default=[1, 0.1, 0.01])
    parser.add_argument("--pattern", choices=PATTERNS, default="random")
    parser.add_argument("--samples", type=int, default=7, help="of a point, in each round")
    parser.add_argument("--rounds", type=int, default=3, help="processes of each way")
    parser.add_argument("--rate", type=rate, help="of the links, as 1gbit: adds the wire bound")
    parser.add_argument("--timeout", type=float, default=300, help="seconds, of each process")
    parser.add_argument("--json", type=Path, help="write the results, with raw samples, here")
    return parser.parse_args()


def rate(text: str) -> float:
    """Bytes a second."""
    match = re.fullmatch(r"([\d.]+)(kbit|mbit|gbit)", text)
    if not match:
        raise argparse.ArgumentTypeError(f"{text}: a number and one of {', '.join(UNITS)}")
    return float(match[1]) * UNITS[match[2]] / 8


# --- the processes of one way -------------------------------------------------------------------


def environments(way: str, ranks: int, run: int) -> list[dict[str, str]]:
    """The environments of the processes to start: all ranks, or one under torchrun."""
    common = {
        **{k: v for k, v in os.environ.items() if not k.startswith("TORCHELASTIC_")},
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        "OMP_NUM_THREADS": "1",
        **WAYS[way],
        "OMNIHVD_BLOCK_SIZE": "256",
    }
    if under_torchrun():  # the agent has the port itself
        return [{**common, "MASTER_PORT": str(int(os.environ["MASTER_PORT"]) + 1 + run)}]
    links = {"UCX_TLS": "tcp", "UCX_NET_DEVICES": "lo"}  # as NCCL's
    return [{**common, **links, **own} for own in one_gpu.environments(ranks)]


def under_torchrun() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ


def rank_and_ranks(args: argparse.Namespace) -> tuple[int, list[int]]:
    if under_torchrun():
        return int(os.environ["RANK"]), [int(os.environ["WORLD_SIZE"])]
    return 0, args.ranks


def run_way(
    way: str, ranks: int, run: int, points: list[Point], args: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """Rank 0's answers as they come, where it was started here. Raises BenchError, with the ranks'
    output."""
    with tempfile.TemporaryDirectory() as folder:
        answers = Path(folder) / "answers"
        job = {
            "way": way,
            "points": [asdict(point) for point in points],
            "samples": args.samples,
            "dtype": args.dtype,
            "op": args.op,
            "gemm": args.gemm,
            "timeout": args.timeout,
            "output": str(answers),
        }
        processes, logs = [], []
        try:
            for i, environment in enumerate(environments(way, ranks, run)):
                logs.append(Path(folder) / f"output{i}")
                with logs[-1].open("w") as log:
                    processes.append(
                        subprocess.Popen(
                            [sys.executable, str(RANK_SCRIPT), json.dumps(job)],
                            env=environment,
                            stdin=subprocess.DEVNULL,
                            stdout=log,
                            stderr=subprocess.STDOUT,
                        )
                    )
            problem = yield from wait(processes, args.timeout, answers)
        finally:
            for process in processes:
                process.kill()
                process.wait()
        if problem:
            said = "\n".join(f"--- {log.name}\n{log.read_text()[-4000:]}" for log in logs)
            raise BenchError(f"{way}, {ranks} ranks: {problem}\n{said}")


def wait(
    processes: list[subprocess.Popen[bytes]], timeout: float, answers: Path
) -> Generator[dict[str, Any], None, str]:
    """Yields each line of `answers` once it is there. Returns what went wrong, or nothing: a
    process that failed leaves the others waiting."""
    deadline, told = time.monotonic() + timeout, 0
    while True:
        running = any(process.poll() is None for process in processes)
        text = answers.read_text() if answers.exists() else ""
        for line in text[told:].splitlines(keepends=True):
            if line.endswith("\n"):
                told += len(line)
                yield json.loads(line)
        if not running:
            break
        if any(process.poll() not in (None, 0) for process in processes):
            time.sleep(3)  # the others' messages
            break
        if time.monotonic() > deadline:
            for process in processes:
                process.send_signal(signal.SIGABRT)
            return f"not done after {timeout:g} s"
        time.sleep(0.05)
    failed = [process.returncode for process in processes if process.poll()]
    return f"exit status {failed[0]}" if failed else ""


# --- figures ------------------------------------------------------------------------------------


def measure(args: argparse.Namespace) -> Iterator[list[dict[str, Any]]]:
    """After each answer, the results so far: one for each number of ranks, way and point, the
    newest first. Yields only where rank 0 is."""
    dtype = "float16" if args.dtype == "bfloat16" else args.dtype  # as large; see nccl_gpu_rank.py
    counts = [int(size // np.dtype(dtype).itemsize) for size in args.bytes]
    points = [
        Point(count, density, args.pattern, dtype) for count in counts for density in args.densities
    ]
    once = points[:: len(args.densities)]
    _, sizes = rank_and_ranks(args)
    results: dict[tuple[Any, ...], dict[str, Any]] = {}
    run = 0
    for ranks in sizes:
        for round_ in range(args.rounds):
            for way in args.ways[:: 1 if round_ % 2 == 0 else -1]:
                mine = once if way == "nccl" else points
                for answer in run_way(way, ranks, run, mine, args):
                    new = figures(add(results, ranks, way, answer), args.rate)
                    yield [new, *(result for result in results.values() if result is not new)]
                run += 1


def meant(way: str, union: float) -> set[str]:
    """The algorithms that may make a way's sums of tensors with such a union."""
    if way == "nccl":
        return set()
    if way == "auto":
        return {"union", "original"}
    return {"original" if union > 0.9 else "union"}  # gpu_choice.cc, kNearlyAll


def check(ranks: int, way: str, answer: dict[str, Any]) -> None:
    """Raises BenchError unless all samples are sums by `way`, with a capacity for this point."""
    point, counters = Point(**answer["point"]), answer["counters"][0]
    present = [present_blocks(point, rank, ranks) for rank in range(ranks)]
    union, made = float(np.any(present, axis=0).mean()), set(answer["ways"])
    where, may = f"{way}, {ranks} ranks, density {point.density:g}", meant(way, union)
    if not made <= may or len(made) != min(len(may), 1):
        raise BenchError(f"{where}: sums by {sorted(made)}, where {sorted(may)} was meant")
    if made == {"union"} and summed(counters) > 1.5 * union + 0.01:
        share = f"{summed(counters):.2f} of the tensor, and the union is {union:.2f}"
        raise BenchError(f"{where}: NCCL summed {share}: more sums have to come before the samples")


def summed(counters: dict[str, float]) -> float:
    """The share of the tensor that NCCL summed."""
    return counters["library_bytes"] / counters["ring_bytes"]


def add(results: dict[Any, Any], ranks: int, way: str, answer: dict[str, Any]) -> dict[str, Any]:
    """Joins the samples of a point's rounds."""
    taken = [counters["calls"] for counters in answer["counters"]]
    if any(calls != (way != "nccl") for calls in taken):
        raise BenchError(f"{way}, {ranks} ranks: omnihvd took {taken} calls for each sum")
    check(ranks, way, answer)
    key = (ranks, way, *answer["point"].values())
    first = results.setdefault(key, {"ranks": ranks, "backend": way, "rounds": [], **answer})
    first["rounds"].append(answer.pop("samples"))
    first.pop("samples", None)
    for name, samples in answer.get("gemm", {}).items():
        if first["gemm"][name] is not samples:
            first["gemm"][name] += samples
    return cast("dict[str, Any]", first)


def figures(result: dict[str, Any], link_rate: float | None) -> dict[str, Any]:
    samples = sorted(sample for round_ in result["rounds"] for sample in round_)
    result |= {"median_s": statistics.median(samples), "min_s": samples[0], "max_s": samples[-1]}
    if gemm := result.get("gemm"):
        alone, beside = statistics.median(gemm["alone"]), statistics.median(gemm["beside"])
        result["lost_overlap"] = (beside - alone) / result["median_s"]
    if link_rate and result["backend"] == "nccl":
        share = link_rate if under_torchrun() else link_rate / result["ranks"]
        point = Point(**result["point"])
        result["wire_bound_s"] = limit_seconds("nccl", point, result["ranks"], share, 0.0)
    return result


def ms(result: dict[str, Any]) -> str:
    return "{median_s:.1f} ({min_s:.1f} to {max_s:.1f})".format(
        **{name: 1e3 * result[name] for name in ("median_s", "min_s", "max_s")}
    )


def row_of(result: dict[str, Any]) -> list[str]:
    point = Point(**result["point"])
    share = "" if result["backend"] == "nccl" else f"{summed(result['counters'][0]):.3f}"
    row = [str(result["ranks"]), f"{point.bytes / 1e6:.4g}", f"{point.density:g}"]
    return [*row, result["backend"], "+".join(result["ways"]), share, ms(result)]


def table(results: list[dict[str, Any]]) -> str:
    header = ["ranks", "MB", "density", "way", "sums by", "summed", "ms", "NCCL ms", "NCCL / way"]
    header += ["lost overlap", "NCCL's"]
    bounds = any("wire_bound_s" in result for result in results)
    header += ["way / wire bound"] if bounds else []
    dense = {(r["ranks"], r["point"]["count"]): r for r in results if r["backend"] == "nccl"}
    rows = []
    for result in results:
        if result["backend"] == "nccl":
            continue
        nccl = dense.get((result["ranks"], result["point"]["count"]))
        row = row_of(result)
        row += [ms(nccl), f"{nccl['median_s'] / result['median_s']:.2f}"] if nccl else ["", ""]
        lost = [r["lost_overlap"] if r and "lost_overlap" in r else None for r in (result, nccl)]
        row += ["" if share is None else f"{share:.2f}" for share in lost]
        if bounds:
            bound = result.get("wire_bound_s")
            row += [f"{result['median_s'] / bound:.2f}" if bound else ""]
        rows.append(row)
    return markdown(header, rows)


def machine(results: list[dict[str, Any]]) -> dict[str, Any]:
    def said_by(*command: str) -> str:
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=30, cwd=ROOT)
        except (OSError, subprocess.TimeoutExpired):
            return "unknown"
        return done.stdout.strip() or "unknown"

    driver = said_by("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return {
        "device": results[0]["device"],
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": said_by("git", "rev-parse", "HEAD"),
        "versions": {
            "nccl": results[0]["nccl"],
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "driver": driver.splitlines()[0],
        },
        "cores": os.cpu_count(),
        "shared_gpu": not under_torchrun(),
        "settings": {k: v for k, v in os.environ.items() if k.startswith(("OMNIHVD_", "NCCL_"))},
    }


def main() -> int:
    args = parse_arguments()
    if not torch.cuda.is_available():
        print("nccl_gpu: no usable GPU", file=sys.stderr)
        return 1
    results: list[dict[str, Any]] = []
    about: dict[str, Any] = {}
    problem = ""
    try:
        for results in measure(args):
            about = about or machine(results)
            print("  ".join(row_of(results[0])), flush=True)
            if args.json:
                write(args, about, results)
    except BenchError as error:
        problem = str(error)
    if results:  # else another host has rank 0
        where = "sharing one" if about["shared_gpu"] else "of"
        print(f"{where} {about['device']}, {about['date']}, {about['versions']}")
        print(f"{args.op} of {args.dtype}")
        print(table(sorted(results, key=order)))
    if problem:
        print(f"nccl_gpu: {problem}", file=sys.stderr)
    return 1 if problem else 0


def order(result: dict[str, Any]) -> tuple[Any, ...]:
    point = result["point"]
    return result["ranks"], point["count"], -point["density"], result["backend"]


def write(args: argparse.Namespace, about: dict[str, Any], results: list[dict[str, Any]]) -> None:
    """The whole file, which is whole at any time: a step of .ci/gpu may be stopped."""
    options = {k: str(v) for k, v in vars(args).items()}
    content = {**about, "options": options, "results": sorted(results, key=order)}
    args.json.parent.mkdir(parents=True, exist_ok=True)
    beside = args.json.with_name(args.json.name + ".new")
    beside.write_text(json.dumps(content, indent=1) + "\n")
    beside.replace(args.json)


if __name__ == "__main__":
    sys.exit(main())
