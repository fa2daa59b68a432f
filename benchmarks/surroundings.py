"""Sums of two ranks of one host in bad surroundings, beside Gloo's: medians of single calls.

    sudo python benchmarks/surroundings.py [--rounds 3] [--seconds 0.4]

as it is        two cores
one core        both ranks on one core
half the time   their control group may use as much time as one core has, on both cores
no memory       /dev/shm is read-only
own memory      rank 1 has an IPC namespace and a /dev/shm of its own, as in another container

Tensors are float32; a tenth of their blocks are not zero, the same on both ranks. Each job is a
torchrun of its own, the jobs take turns, and each checks a sum first. A call's time is the slower
rank's. Writes results/surroundings.json; benchmarks/README.md has its table.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from benchmarks.small_sums import MARK, for_seconds, job  # noqa: E402

RESULT = Path(__file__).parent / "results" / "surroundings.json"
COUNTS = (2_048, 65_536, 2_500_000)  # 8 KiB, 256 KiB, 10 MB
RANKS, BLOCK = 2, 256
KINDS = ("omnihvd", "gloo")
# A shell's words that make the surroundings and then run the job.
READ_ONLY = 'mount -t tmpfs -o ro none /dev/shm && exec "$@"'
OF_ITS_OWN = 'mount -t tmpfs none /dev/shm && exec "$@"'
LIMITED = (
    "here=$PWD; cd /sys/fs/cgroup; if [ -e cgroup.controllers ]; then "
    "mkdir -p surroundings; echo +cpu > cgroup.subtree_control; cd surroundings; "
    "echo '100000 100000' > cpu.max; else mkdir -p cpu/surroundings; cd cpu/surroundings; "
    'echo 100000 > cpu.cfs_quota_us; fi && echo $$ > cgroup.procs && cd "$here" && exec "$@"'
)
PLACES: dict[str, list[str]] = {
    "as it is": [],
    "one core": ["taskset", "-c", "0"],
    "half the time": ["sh", "-c", LIMITED, "sh"],
    "no memory": ["unshare", "--mount", "sh", "-c", READ_ONLY, "sh"],
    "own memory": [],
}


def rank_of(kind: str, seconds: float) -> None:
    if kind == "omnihvd":
        import omnihvd  # noqa: F401
    import torch
    import torch.distributed as dist

    if kind == "gloo" and "omnihvd" in sys.modules:
        raise SystemExit("Gloo's ranks have omnihvd")
    dist.init_process_group("gloo")
    for count in COUNTS:
        given = torch.ones(-(-count // BLOCK), BLOCK)
        given[torch.arange(len(given)) % 10 != 0] = 0
        given, tensor = given.flatten()[:count].clone(), torch.empty(count)

        def call(given: Any = given, tensor: Any = tensor) -> float:
            tensor.copy_(given)
            begun = time.perf_counter()
            dist.all_reduce(tensor)
            return time.perf_counter() - begun

        call()
        if not torch.equal(tensor, RANKS * given):
            raise SystemExit("a wrong sum")
        times = for_seconds(dist, lambda calls: [call() for _ in range(calls)], seconds)
        if dist.get_rank() == 0:
            print(MARK, json.dumps([count, statistics.median(times), len(times)]), flush=True)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.4, help="at each size")
    parser.add_argument("--kind", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--place", choices=PLACES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.kind:
        if args.place == "own memory" and os.environ["RANK"] == "1" and not os.getenv("APART"):
            apart = ["unshare", "--mount", "--ipc", "sh", "-c", OF_ITS_OWN, "sh"]
            command = [*apart, "env", "APART=1", sys.executable, *sys.argv]
            os.execvp(command[0], command)
        rank_of(args.kind, args.seconds)
        return
    from benchmarks.bench.command import machine  # imports omnihvd, as Gloo's ranks must not

    results = []
    for place in PLACES:
        words = (__file__, "--place", place, "--seconds", args.seconds, "--kind")
        rounds = [
            {k: job((*words, k), RANKS, len(COUNTS), PLACES[place]) for k in KINDS}
            for _ in range(args.rounds)
        ]
        for count in COUNTS:
            found = {kind: [one[kind][count] for one in rounds] for kind in KINDS}
            results.append({"place": place, "count": count, "seconds": found})
            print(place, count, {k: statistics.median(v) for k, v in found.items()}, flush=True)
    RESULT.write_text(json.dumps({**machine(), "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
