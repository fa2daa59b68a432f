"""What each rank of a benchmark runs: verifies and times every point with one backend.

Started by omnihvd.bench.backends; rank 0 writes one JSON object a point to the file of its job.
"""

from __future__ import annotations

import json
import os
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from omnihvd.bench.patterns import BLOCK, Point, part, total


class Gloo:
    """torch.distributed over Gloo: the ring allreduce that PyTorch uses on CPUs."""

    def __init__(self) -> None:
        import torch
        import torch.distributed as dist

        self.torch, self.dist = torch, dist
        os.environ["RANK"] = os.environ["OMPI_COMM_WORLD_RANK"]
        os.environ["WORLD_SIZE"] = os.environ["OMPI_COMM_WORLD_SIZE"]
        dist.init_process_group("gloo")
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def prepare(self, x: np.ndarray) -> None:
        self.original = self.torch.from_numpy(x)
        self.tensor = self.original.clone()

    def restore(self) -> None:
        self.tensor.copy_(self.original)

    def reduce(self) -> None:
        self.dist.all_reduce(self.tensor)

    def result(self) -> np.ndarray:
        return self.tensor.numpy()

    def barrier(self) -> None:
        self.dist.barrier()

    def gather(self, value: Any) -> list[Any]:
        values: list[Any] = [None] * self.size
        self.dist.all_gather_object(values, value)
        return values

    def stats(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        self.dist.destroy_process_group()


class Horovod(Gloo):
    """Horovod's allreduce, in place, of one tensor."""

    def __init__(self) -> None:
        import horovod.torch as hvd
        import torch

        self.torch, self.hvd = torch, hvd
        hvd.init()
        self.rank, self.size = hvd.rank(), hvd.size()

    def reduce(self) -> None:
        self.hvd.allreduce_(self.tensor, op=self.hvd.Sum, name="bench")

    def barrier(self) -> None:
        self.hvd.barrier()

    def gather(self, value: Any) -> list[Any]:
        return list(self.hvd.allgather_object(value))

    def close(self) -> None:
        self.hvd.shutdown()


class OmniHvd(Horovod):
    """The same with omnihvd under it."""

    def __init__(self) -> None:
        import omnihvd

        self.omnihvd = omnihvd
        super().__init__()

    def stats(self) -> dict[str, Any]:
        return self.omnihvd.stats()


class AgSparse(Horovod):
    """Horovod's path for sparse gradients: allgather of indices and values.

    The tensor is given as a sparse one from the start, of rows of one block (single elements for
    the pattern of elements), and the gathered parts are not summed in the time measured, though a
    user's optimizer has to: both in favour of this backend.
    """

    def prepare(self, x: np.ndarray) -> None:
        self.count = len(x)
        given = self.torch.from_numpy(x)
        width = 1 if _is_elementwise(x) else BLOCK
        self.original = self.torch.zeros(-(-len(x) // width), width, dtype=given.dtype)
        self.original.view(-1)[: len(x)] = given
        self.rows = self.original.any(1).nonzero().t()
        self.values = self.original[self.rows[0]]

    def restore(self) -> None:
        pass

    def reduce(self) -> None:
        sparse = self.torch.sparse_coo_tensor(self.rows, self.values, self.original.shape)
        self.gathered = self.hvd.sparse_allreduce_async(sparse, name="bench", op=self.hvd.Sum)()

    def result(self) -> np.ndarray:
        return self.gathered.to_dense().flatten()[: self.count].numpy()


class AgSparseOfDense(AgSparse):
    """The same for what omnihvd is given and gives back: a dense tensor, in place.

    Non-zero rows are found, gathered from all ranks, and added.
    """

    def prepare(self, x: np.ndarray) -> None:
        super().prepare(x)
        self.tensor = self.original.clone()

    def restore(self) -> None:
        self.tensor.copy_(self.original)

    def reduce(self) -> None:
        rows = self.tensor.any(1).nonzero().flatten()
        parts = [
            self.hvd.allgather_async(rows, name="rows"),
            self.hvd.allgather_async(self.tensor[rows], name="values"),
        ]
        all_rows, all_values = (self.hvd.synchronize(part) for part in parts)
        self.tensor[rows] = 0
        self.tensor.index_add_(0, all_rows, all_values)

    def result(self) -> np.ndarray:
        return self.tensor.flatten()[: self.count].numpy()


def _is_elementwise(x: np.ndarray) -> bool:
    by_rows = x[: len(x) // BLOCK * BLOCK].reshape(-1, BLOCK) != 0
    return bool(by_rows.mean() < by_rows.any(1).mean() / 2)


BACKENDS = {
    "omnihvd": OmniHvd,
    "omnihvd-dedicated": OmniHvd,
    "gloo": Gloo,
    "horovod": Horovod,
    "horovod-ring": Horovod,
    "agsparse": AgSparse,
    "agsparse-of-dense": AgSparseOfDense,
}


def read_seconds(backend: Any, x: np.ndarray) -> float:
    """Time in which all ranks, at once, read their tensors from memory.

    They begin at one moment of the clock that they share on this machine: after a barrier they
    would begin one after another, and read faster than they can together.
    """
    words = x[: len(x) // 8 * 8].view(np.int64)
    begin = max(backend.gather(time.monotonic())) + 0.05
    time.sleep(max(0.0, begin - time.monotonic()))
    np.bitwise_or.reduce(words)
    end = time.monotonic()
    return float(max(backend.gather(end)) - begin)


def warm_up(backend: Any, most: int = 16, seconds: float = 8) -> None:
    """Until omnihvd has tried its ways; others fill caches and connections."""
    begin = time.perf_counter()
    for _ in range(most):
        backend.restore()
        backend.reduce()
        if backend.gather(time.perf_counter() - begin > seconds)[0]:
            break


def measure(backend: Any, point: Point, min_seconds: float, min_runs: int) -> dict[str, Any]:
    x = part(point, backend.rank, backend.size)
    backend.prepare(x)
    backend.reduce()
    if backend.rank == 0:  # all ranks have the same bits, or the next gather says otherwise
        expected = total(point, backend.size)
        if not np.array_equal(backend.result(), expected):
            raise AssertionError(f"wrong sum of {point}")
    checksums = backend.gather(zlib.crc32(backend.result().tobytes()))
    if len(set(checksums)) > 1:
        raise AssertionError(f"the ranks' results differ for {point}")
    warm_up(backend)
    reads = [read_seconds(backend, x) for _ in range(3)]
    before = backend.stats()
    samples: list[float] = []
    while True:
        backend.restore()
        backend.barrier()
        start = time.perf_counter()
        backend.reduce()
        samples.append(max(backend.gather(time.perf_counter() - start)))
        enough = len(samples) >= min_runs and sum(samples) >= min_seconds
        if backend.gather(enough or len(samples) >= 1000)[0]:
            break
    after = backend.stats()
    counters = {
        name: (after[name] - before[name]) / len(samples)
        for name in ("calls", "bytes_sent", "bytes_received", "messages_sent", "nonzero_blocks")
        if name in after
    }
    return {
        "samples": samples,
        "read_s": min(reads),
        "counters": backend.gather(counters),
    }


def main() -> None:
    job = json.loads(sys.argv[1])
    backend = BACKENDS[job["backend"]]()
    import torch

    torch.set_num_threads(1)
    for fields in job["points"]:
        point = Point(**fields)
        answer = measure(backend, point, job["min_seconds"], job["min_runs"])
        if backend.rank == 0:
            with Path(job["output"]).open("a") as file:
                file.write(json.dumps({"point": fields, **answer}) + "\n")
    backend.close()


if __name__ == "__main__":
    main()
