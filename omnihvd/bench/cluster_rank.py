"""Runs on each rank of `omnihvd bench`: verifies sums, then times them.

argv[1]: JSON in base64, since launchers quote in their own ways. It has `library` (horovod or
torch), `omnihvd` (whether it takes part), `env` (set before MPI or Gloo begins), `points` ([bytes,
density] each) and `seconds` (of a point). Rank 0 prints one line for each point: MARK and JSON.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import time
from typing import Any

import numpy as np

MARK = "omnihvd-bench:"
BLOCK = 256
WARM_UP = 15  # sums, while algorithms are tried
LEAST, MOST = 5, 200  # timed sums


def packed(plan: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(plan).encode()).decode()


def unpacked(word: str) -> dict[str, Any]:
    return dict(json.loads(base64.urlsafe_b64decode(word)))


class OverHorovod:
    def __init__(self, with_omnihvd: bool) -> None:
        if with_omnihvd:
            import omnihvd  # noqa: F401
        import horovod.torch as hvd

        hvd.init()
        self.hvd, self.rank, self.size = hvd, hvd.rank(), hvd.size()

    def sum(self, tensor: Any) -> Any:
        return self.hvd.allreduce_(tensor, op=self.hvd.Sum, name="bench")

    def slowest(self, seconds: list[float]) -> list[float]:
        import torch

        mine = torch.tensor([seconds], dtype=torch.float64)
        return list(self.hvd.allgather(mine, name="times").max(dim=0).values.tolist())

    def end(self) -> None:
        self.hvd.shutdown()


class OverTorch:
    def __init__(self, with_omnihvd: bool) -> None:
        if with_omnihvd:
            import omnihvd  # noqa: F401
        import torch.distributed as dist

        dist.init_process_group("gloo")
        self.dist, self.rank, self.size = dist, dist.get_rank(), dist.get_world_size()

    def sum(self, tensor: Any) -> Any:
        self.dist.all_reduce(tensor)
        return tensor

    def slowest(self, seconds: list[float]) -> list[float]:
        import torch

        times = torch.tensor(seconds, dtype=torch.float64)
        self.dist.all_reduce(times, op=self.dist.ReduceOp.MAX)
        return list(times.tolist())

    def end(self) -> None:
        self.dist.destroy_process_group()


def tensors(rank: int, size: int, count: int, density: float) -> tuple[np.ndarray, np.ndarray]:
    """A rank's tensor, and the sum. Element i of a non-zero block is (rank + 1) * (1 + i % 7)."""
    blocks = -(-count // BLOCK)
    there = [np.random.default_rng([count, r]).random(blocks) < density for r in range(size)]
    values = (1 + np.arange(count) % 7).astype(np.float32)
    weights = sum((r + 1) * there[r].astype(np.float32) for r in range(size))
    mine = np.repeat((rank + 1) * there[rank].astype(np.float32), BLOCK)[:count] * values
    return mine, np.repeat(weights, BLOCK)[:count] * values


def measure(library: Any, count: int, density: float, seconds: float) -> dict[str, Any]:
    """Times single sums, on the slowest rank. Each sum has new memory, as gradients have."""
    import torch

    mine, total = tensors(library.rank, library.size, count, density)
    original, expected = torch.from_numpy(mine), torch.from_numpy(total)
    if not torch.equal(library.sum(original.clone()), expected):
        raise SystemExit(f"rank {library.rank}: a wrong sum of {count} float32")

    def sums(number: int) -> list[float]:
        times = []
        for _ in range(number):
            tensor = original.clone()
            begin = time.perf_counter()
            library.sum(tensor)
            times.append(time.perf_counter() - begin)
        return library.slowest(times)

    one = float(np.median(sums(WARM_UP)))  # the same on all ranks
    times = sums(runs(seconds, one))
    # Few figures: launchers break lines that are long.
    figures = {"median": float(np.median(times)), "least": min(times), "most": max(times)}
    return {"count": count, "density": density, "runs": len(times), **figures}


def runs(seconds: float, one: float) -> int:
    return int(min(max(seconds / one, LEAST), MOST))


def main() -> None:
    plan = unpacked(sys.argv[1])
    os.environ.update(plan["env"])
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    library = (OverHorovod if plan["library"] == "horovod" else OverTorch)(plan["omnihvd"])
    for size, density in plan["points"]:
        found = measure(library, size // 4, density, plan["seconds"])
        if library.rank == 0:
            print(MARK, json.dumps({**found, "ranks": library.size}), flush=True)
    library.end()


if __name__ == "__main__":
    main()
