"""What each rank of a benchmark runs: verifies and times every point with one backend.

Started by omnihvd.bench.backends; rank 0 writes one JSON object a point to the file of its job.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from omnihvd.bench.meeting import Meeting
from omnihvd.bench.patterns import BLOCK, Point, is_total, part

COUNTERS = (
    "calls",
    "bytes_sent",
    "bytes_received",
    "bytes_copied",
    "messages_sent",
    "nonzero_blocks",
)


class Gloo:
    """torch.distributed over Gloo: the ring allreduce that PyTorch uses on CPUs."""

    tensor: Any = None  # what is reduced
    most_error = 0.0  # relative to the sum, of lossy ones

    def __init__(self) -> None:
        import torch
        import torch.distributed as dist

        self.torch, self.dist = torch, dist
        os.environ["RANK"] = os.environ["OMPI_COMM_WORLD_RANK"]
        os.environ["WORLD_SIZE"] = os.environ["OMPI_COMM_WORLD_SIZE"]
        dist.init_process_group("gloo")

    def prepare(self, x: np.ndarray) -> None:
        self.original = self.torch.from_numpy(x)
        fits = self.tensor is not None and self.tensor.dtype == self.original.dtype
        if not (fits and self.tensor.shape == self.original.shape):
            self.tensor = self.original.clone()

    def restore(self) -> None:
        self.tensor.copy_(self.original)

    def reduce(self) -> None:
        self.dist.all_reduce(self.tensor)

    def result(self) -> np.ndarray:
        return self.tensor.numpy()

    def stats(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        self.dist.destroy_process_group()


class OmniGloo(Gloo):
    """The same with omnihvd under it."""

    def __init__(self) -> None:
        import omnihvd.torch

        self.omnihvd = omnihvd
        super().__init__()

    def stats(self) -> dict[str, Any]:
        return self.omnihvd.stats()


class Horovod(Gloo):
    """Horovod's allreduce, in place, of one tensor."""

    def __init__(self) -> None:
        import horovod.torch as hvd
        import torch

        self.torch, self.hvd = torch, hvd
        hvd.init()

    def reduce(self) -> None:
        self.hvd.allreduce_(self.tensor, op=self.hvd.Sum, name="bench")

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


class OmniNatural(OmniHvd):
    """The same under natural compression, as a training script has it: not in place."""

    most_error = 0.6

    def reduce(self) -> None:
        self.summed = self.hvd.allreduce(
            self.tensor,
            op=self.hvd.Sum,
            name="bench",
            compression=self.omnihvd.OmniReduce.natural(),
        )

    def restore(self) -> None:
        self.tensor = self.original

    def result(self) -> np.ndarray:
        return self.summed.numpy()


class OmniGlooNatural(OmniGloo):
    """The same under natural compression."""

    most_error = 0.6

    def reduce(self) -> None:
        from omnihvd.torch.process_group import take

        codec = self.omnihvd.OmniReduce.natural()
        work = take(self.dist.group.WORLD, self.tensor, codec=codec)
        assert work is not None
        work.wait()


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
    "omnihvd-torch": OmniGloo,
    "omnihvd-natural": OmniNatural,
    "omnihvd-torch-natural": OmniGlooNatural,
    "gloo": Gloo,
    "horovod": Horovod,
    "horovod-ring": Horovod,
    "agsparse": AgSparse,
    "agsparse-of-dense": AgSparseOfDense,
}
LOSSLESS = [name for name, backend in BACKENDS.items() if not backend.most_error]


def read_seconds(meeting: Meeting, x: np.ndarray) -> float:
    """Time in which all ranks, at once, read their tensors from memory."""
    words = x[: len(x) // 8 * 8].view(np.int64)
    begin = meeting.begin()
    np.bitwise_or.reduce(words)
    end = time.monotonic()
    return float(max(meeting.gather(end)) - begin)


TRIED_S = 20.0  # by then ways that are compared are not waited for any more
ALIKE = 9  # trials of ways that are close come 8 sums apart


def warm_up(backend: Any, meeting: Meeting) -> None:
    """Fills caches and connections; omnihvd's goes on until it has tried its ways, which shows in
    sums that all went the same."""
    begin = time.perf_counter()
    counts: list[dict[str, Any]] = []
    while len(counts) < 100:
        backend.restore()
        backend.reduce()
        spent = time.perf_counter() - begin
        counts.append({k: way["calls"] for k, way in backend.stats().get("ways", {}).items()})
        if meeting.gather(is_warm(counts, spent))[0]:
            break


def is_warm(counts: list[dict[str, int]], spent: float) -> bool:
    """counts: calls of each way, after each sum; of backends without ways: nothing."""
    if not counts[-1]:
        return spent > 5 or len(counts) >= 16
    if len(counts) < 16:
        return False
    recent = counts[-1 - ALIKE]
    return spent > TRIED_S or sum(n != recent.get(k, 0) for k, n in counts[-1].items()) == 1


def cpu_seconds(others: list[int]) -> float:
    """Processor time so far, user and system, of all threads of this process, and of others."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime + sum(map(_cpu_seconds_of, others))


def _cpu_seconds_of(process: int) -> float:
    tasks = Path(f"/proc/{process}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


def aggregators() -> list[int]:
    """The dedicated aggregators' processes, as far as this one sees them: in a lab, all."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if b"\0aggregator\0--bind\0" in (process / "cmdline").read_bytes():
                found.append(int(process.name))
    return found


def is_enough(samples: list[float], job: dict[str, Any]) -> bool:
    """Of samples, in seconds."""
    spent = sum(samples)
    if job["max_seconds"] is not None and spent >= job["max_seconds"]:
        return True
    return (len(samples) >= job["min_runs"] and spent >= job["min_seconds"]) or len(samples) >= 1000


def measure(
    backend: Any, meeting: Meeting, point: Point, job: dict[str, Any], reads: dict[int, float]
) -> dict[str, Any]:
    """reads: read_seconds() by bytes of a tensor, as far as known already."""
    x = part(point, meeting.rank, meeting.size)
    backend.prepare(x)
    backend.restore()
    backend.reduce()
    # All ranks have the same bits, or the next gather says otherwise.
    if meeting.rank == 0 and not is_total(
        backend.result(), point, meeting.size, backend.most_error
    ):
        raise AssertionError(f"wrong sum of {point}")
    checksums = meeting.gather(zlib.crc32(backend.result().tobytes()))
    if len(set(checksums)) > 1:
        raise AssertionError(f"the ranks' results differ for {point}")
    warm_up(backend, meeting)
    if point.bytes not in reads:
        reads[point.bytes] = min(read_seconds(meeting, x) for _ in range(3))
    others = aggregators() if job["backend"] == "omnihvd-dedicated" and meeting.rank == 0 else []
    before = backend.stats()
    samples: list[float] = []
    cpu = 0.0  # of this rank, while it reduces; not while it waits to begin or compares times
    while not is_enough(samples, job):
        backend.restore()
        meeting.begin()
        cpu -= cpu_seconds(others)
        start = time.perf_counter()
        backend.reduce()
        seconds = time.perf_counter() - start
        cpu += cpu_seconds(others)
        samples.append(max(meeting.gather(seconds)))
    after = backend.stats()
    counters = {
        name: (after[name] - before[name]) / len(samples) for name in COUNTERS if name in after
    }
    return {
        "samples": samples,
        "read_s": reads[point.bytes],
        "cpu_s": sum(meeting.gather(cpu)) / len(samples),
        "counters": meeting.gather(counters),
    }


def main() -> None:
    job = json.loads(sys.argv[1])
    env, reads = os.environ, dict[int, float]()
    meeting = Meeting(
        int(env["OMPI_COMM_WORLD_RANK"]),
        int(env["OMPI_COMM_WORLD_SIZE"]),
        (env["MASTER_ADDR"], int(env["MEETING_PORT"])),
        env["MEETING_KEY"].encode(),
    )
    backend = BACKENDS[job["backend"]]()
    import torch

    torch.set_num_threads(1)
    for fields in job["points"]:
        point = Point(**fields)
        answer = measure(backend, meeting, point, job, reads)
        if meeting.rank == 0:
            with Path(job["output"]).open("a") as file:
                file.write(json.dumps({"point": fields, **answer}) + "\n")
    meeting.barrier()
    backend.close()


if __name__ == "__main__":
    main()
