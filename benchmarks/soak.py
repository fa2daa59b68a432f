"""A job that runs for hours while groups come and go: memory, descriptors and speed over time.

    python benchmarks/soak.py [--minutes 60] [--ranks 3] [--busy 0.3]

The ranks are processes of torch.distributed on this machine. The last one is another host to
omnihvd, so TCP and shared memory both carry messages. In each round they make groups, sum in them
tensors of random size, dtype and share of zero blocks, check each sum by its closed form, and end
the groups. They rest so that they are busy for a share of the time only. Twice a minute each rank
looks at its memory, descriptors and threads, and the ranks time a small sum, a large one, and a
copy of the large one's memory for comparison.

Each run adds a part to results/soak.json, which has what was found so far if the run is stopped.
`python benchmarks/plots.py` draws it. A run fails if a sum is wrong, if omnihvd made none, or if
descriptors or threads have grown.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from benchmarks.bench.source import source  # noqa: E402
from benchmarks.campaign.plan import Sum  # noqa: E402
from benchmarks.campaign.values import contribution, difference, encode, total  # noqa: E402

RESULT = Path(__file__).parent / "results" / "soak.json"
SIZES = (0, 1, 255, 2_048, 2_049, 16_384, 70_001, 300_000, 1_000_000)  # elements
DTYPES = ("float32", "float64", "float16", "int32")
SHARES = (1.0, 0.1, 0.01)  # of blocks that are not zero
LARGE = 5_000_000
EVERY = 30.0  # seconds between looks
MOST_GROWTH = 2  # descriptors or threads, of groups that a look happens to see


class Rounds:
    """The ranks' work. All draw the same random numbers."""

    def __init__(self, dist: Any, torch: Any, seed: int) -> None:
        self.dist, self.torch = dist, torch
        self.random = np.random.default_rng(seed)
        self.sums = self.groups = 0

    def one(self) -> None:
        members = self.random.permutation(self.dist.get_world_size())
        members = sorted(map(int, members[: self.random.integers(1, len(members) + 1)]))
        group = self.dist.new_group(members)
        self.groups += 1
        plans = [self._plan() for _ in range(int(self.random.integers(1, 8)))]
        if self.dist.get_rank() in members:
            for plan in plans:
                self._sum(group, len(members), *plan)
            self.dist.destroy_process_group(group)
        self._sum(None, self.dist.get_world_size(), *self._plan())

    def _plan(self) -> tuple[Sum, int]:
        """A sum, and the seed of its numbers."""
        pick: Callable[[Any], Any] = lambda of: of[int(self.random.integers(len(of)))]  # noqa: E731
        planned = Sum("allreduce", pick(SIZES), pick(DTYPES), pick(SHARES), in_place=True)
        return planned, int(self.random.integers(1 << 30))

    def _sum(self, group: Any, size: int, planned: Sum, seed: int) -> None:
        rank, count, dtype = self.dist.get_rank(group), planned.count, planned.dtype
        values = encode(contribution(seed, rank, size, count, planned), dtype)
        self.dist.all_reduce(self.torch.from_numpy(values), group=group)
        if wrong := difference(values, total(seed, size, count, planned), dtype):
            raise SystemExit(f"rank {rank} of {size}: {planned}, seed {seed}: {wrong}")
        self.sums += 1


def look() -> dict[str, float]:
    """This process: MB in memory of its own and shared, descriptors, threads."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what is free is no leak
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    kb = {name: int(status[name].split()[0]) for name in ("RssAnon", "RssShmem")}
    return {
        "own_mb": kb["RssAnon"] / 1024,
        "shared_mb": kb["RssShmem"] / 1024,
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "threads": int(status["Threads"]),
    }


def speeds(dist: Any, torch: Any) -> dict[str, float]:
    """The least time of a few calls."""
    small, other = torch.zeros(2_048), torch.empty(LARGE)
    planned = Sum("allreduce", LARGE, "float32", 0.01, in_place=True)
    kept = contribution(1, 0, dist.get_world_size(), LARGE, planned)  # the same on all ranks
    large = torch.from_numpy(encode(kept, "float32"))

    def least(call: Callable[[], object], calls: int) -> float:
        times = []
        for _ in range(calls):
            dist.barrier()
            begun = time.perf_counter()
            call()
            times.append(time.perf_counter() - begun)
        return min(times)

    return {
        "small_us": 1e6 * least(lambda: dist.all_reduce(small), 30),
        "large_ms": 1e3 * least(lambda: dist.all_reduce(large), 7),
        "copy_ms": 1e3 * least(lambda: other.copy_(large), 7),
    }


def rank(seconds: float, busy: float, seed: int) -> None:
    here = int(os.environ["RANK"])
    last = here == int(os.environ["WORLD_SIZE"]) - 1
    os.environ["OMNIHVD_HOST_ID"] = "other" if last else "first"
    import torch
    import torch.distributed as dist

    import omnihvd

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rounds = Rounds(dist, torch, seed)
    begun = time.monotonic()
    rested = begun
    due, found = 0.0, []
    while True:
        now = time.monotonic() - begun
        times: list[Any] = [now, now >= due, now >= seconds]
        dist.broadcast_object_list(times)
        if times[1] or times[2]:
            looks: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(looks, look())
            found.append({"s": times[0], "ranks": looks, **speeds(dist, torch)})
            due = times[0] + EVERY
            if here == 0:
                taken = sum(way["calls"] for way in omnihvd.stats()["ways"].values())
                counts = {"sums": rounds.sums, "groups": rounds.groups, "taken": taken}
                print(json.dumps({**counts, "looks": found}), flush=True)
        if times[2]:
            break
        rounds.one()
        pause = (time.monotonic() - rested) * (1 / busy - 1)
        time.sleep(min(pause, 5))
        rested = time.monotonic()
    dist.destroy_process_group()


def plot(parts: list[dict[str, Any]], picture: Path) -> None:
    """All parts, one behind the other."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (memory, counts, times) = pyplot.subplots(
        3, 1, sharex=True, figsize=(8, 8), layout="constrained"
    )
    offset = 0.0
    for number, part in enumerate(parts):
        looks = part["looks"][1:]  # the first is before any sum
        hours = [offset + one["s"] / 3600 for one in looks]
        label: Callable[[str], str | None] = lambda name: None if number else name  # noqa: B023, E731
        for rank in range(len(looks[0]["ranks"])):
            own = [one["ranks"][rank]["own_mb"] for one in looks]
            memory.plot(hours, own, f"C{rank}", label=label(f"rank {rank}"))
        for color, name in (("C0", "descriptors"), ("C1", "threads")):
            most = [max(r[name] for r in one["ranks"]) for one in looks]
            counts.plot(hours, most, color, label=label(name))
        for color, name, unit in (
            ("C0", "large_ms", "a large sum, ms"),
            ("C1", "small_us", "a small sum, ms"),
            ("C7", "copy_ms", "a copy, ms"),
        ):
            scale = 1e-3 if name.endswith("_us") else 1
            times.plot(hours, [one[name] * scale for one in looks], color, label=label(unit))
        offset += part["looks"][-1]["s"] / 3600
        for axes in (memory, counts, times):
            axes.axvline(offset, color="0.8", linewidth=1)
    memory.set_ylabel("MB of a rank's own")
    counts.set_ylabel("of a rank, at most")
    times.set(ylabel="ms", xlabel="hours; a line ends a run")
    for axes in (memory, counts, times):
        axes.set_ylim(bottom=0)
        axes.legend(fontsize=8)
    figure.savefig(picture, dpi=100)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--busy", type=float, default=0.3, help="share of the time (0.3)")
    parser.add_argument("--seed", type=int, help="default: by the clock")
    parser.add_argument("--json", type=Path, default=RESULT)
    args = parser.parse_args()
    seed = int(time.time()) if args.seed is None else args.seed
    if "RANK" in os.environ:
        rank(60 * args.minutes, args.busy, seed)
        return
    words = ["--minutes", args.minutes, "--busy", args.busy, "--seed", seed]
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *(f"--nproc-per-node={args.ranks}", __file__, *map(str, words)),
    ]
    made = {**source(), "command": " ".join(["benchmarks/soak.py", *sys.argv[1:]]), "seed": seed}
    before = json.loads(args.json.read_text()) if args.json.exists() else []
    part: dict[str, Any] = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout is not None
        for line in job.stdout:
            if line.startswith("{"):
                part = {**made, **json.loads(line)}
                if part["taken"]:  # else these are another library's figures
                    args.json.write_text(json.dumps([*before, part]) + "\n")
    if job.returncode:
        raise SystemExit("the job failed: what it printed is above")
    if not part.get("taken"):
        raise SystemExit(
            f"omnihvd made no sum, so {args.json} is as it was: `omnihvd check` says what is wrong"
        )
    found = summary(part)
    print(json.dumps(found))
    if grown := leaks(found):
        raise SystemExit(f"a leak, from the first quarter to the last: {', '.join(grown)}")


def leaks(found: dict[str, Any]) -> list[str]:
    """Counts of a summary that have grown. Memory also grows with the sums that are drawn."""
    return [
        f"{name} {found[name][0]:g} -> {found[name][1]:g}"
        for name in ("descriptors", "threads")
        if found[name][1] - found[name][0] > MOST_GROWTH
    ]


def summary(part: dict[str, Any]) -> dict[str, Any]:
    """The first quarter of a part's looks beside its last: medians, of the largest rank."""
    looks = part["looks"]
    quarter = max(len(looks) // 4, 1)

    def medians(of: Callable[[dict[str, Any]], float]) -> list[float]:
        return [
            round(statistics.median(map(of, some)), 1)
            for some in (looks[1 : 1 + quarter], looks[-quarter:])
        ]

    of_rank = lambda name: lambda one: max(r[name] for r in one["ranks"])  # noqa: E731
    names = ("own_mb", "shared_mb", "descriptors", "threads")
    return {
        "hours": round(looks[-1]["s"] / 3600, 2),
        **{name: part[name] for name in ("sums", "groups", "taken")},
        **{name: medians(of_rank(name)) for name in names},
        **{
            name: medians(lambda one, name=name: one[name])
            for name in ("small_us", "large_ms", "copy_ms")
        },
    }


if __name__ == "__main__":
    main()
