"""Costs of a group that is made, sums once and is left: results/group_costs.json. Takes minutes.

    python benchmarks/group_costs.py

Under torch.distributed: new_group, one sum, destroy_process_group. Under MPI: Comm.Dup, one sum,
Free, with omnihvd's library preloaded and without. Plain and omnihvd take turns.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
RESULT = ROOT / "benchmarks" / "results" / "group_costs.json"
COUNT = 100_000  # float32 of the sum: larger than OMNIHVD_MIN_BYTES
GROUPS, TURNS = 60, 3
MARK = "group-costs:"


def torch_rank() -> None:
    import psutil
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    process, tensor = psutil.Process(), torch.ones(COUNT)
    seconds, held = [], []
    for _ in range(GROUPS):
        dist.barrier()
        before = (process.num_fds(), process.num_threads())
        begin = time.perf_counter()
        group = dist.new_group()
        dist.all_reduce(tensor, group=group)
        summed = time.perf_counter()
        held.append((process.num_fds() - before[0], process.num_threads() - before[1]))
        left = time.perf_counter()
        dist.destroy_process_group(group)
        del group  # else its descriptors stay until the next one is there
        seconds.append(summed - begin + time.perf_counter() - left)
    if dist.get_rank() == 0:
        tell(seconds, held)
    dist.destroy_process_group()


def mpi_rank() -> None:
    import numpy as np
    from mpi4py import MPI

    tensor, total = np.ones(COUNT, np.float32), np.empty(COUNT, np.float32)
    seconds = []
    for _ in range(GROUPS):
        MPI.COMM_WORLD.Barrier()
        begin = time.perf_counter()
        comm = MPI.COMM_WORLD.Dup()
        comm.Allreduce(tensor, total)
        comm.Free()
        seconds.append(time.perf_counter() - begin)
    if MPI.COMM_WORLD.Get_rank() == 0:
        tell(seconds, [])


def tell(seconds: list[float], held: list[tuple[int, int]]) -> None:
    found: dict[str, Any] = {"ms": 1e3 * statistics.median(seconds[5:])}
    if held:
        found["descriptors"], found["threads"] = (
            statistics.median(one[i] for one in held[5:]) for i in (0, 1)
        )
    print(MARK, json.dumps(found), flush=True)


def run(kind: str, ranks: int, with_omnihvd: bool) -> dict[str, float]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    program = [__file__, kind]
    if kind == "torch":
        command = ["torchrun", "--standalone", "--nproc-per-node", str(ranks)]
        command += ["-m", "omnihvd", *program] if with_omnihvd else program
    else:
        options = ["--oversubscribe", "-mca", "mpi_yield_when_idle", "1", "-np", str(ranks)]
        if with_omnihvd:
            library = [sys.executable, "-m", "omnihvd", "lib-path", "mpi"]
            path = subprocess.run(library, check=True, capture_output=True, text=True).stdout
            options += ["-x", f"LD_PRELOAD={path.strip()}"]
        command = ["mpirun", *options, sys.executable, *program]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    found = re.search(rf"{MARK} (.*)", done.stdout)
    if not found:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return dict(json.loads(found[1]))


def main() -> None:
    from benchmarks.bench.command import machine

    results = []
    for kind in ("torch", "mpi"):
        for ranks in (2, 4):
            turns: dict[bool, list[dict[str, float]]] = {False: [], True: []}
            for _ in range(TURNS):
                for with_omnihvd, found in turns.items():
                    found.append(run(kind, ranks, with_omnihvd))
            for with_omnihvd, found in turns.items():
                medians = {name: statistics.median(one[name] for one in found) for name in found[0]}
                results.append({"kind": kind, "ranks": ranks, "omnihvd": with_omnihvd, **medians})
                print(results[-1], flush=True)
    content = {"configuration": machine(), "results": results}
    RESULT.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    {"torch": torch_rank, "mpi": mpi_rank}.get(sys.argv[-1], main)()
