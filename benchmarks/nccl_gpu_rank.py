"""Runs on each rank of benchmarks/nccl_gpu.py: verifies and times sums of one tensor on a GPU.

    python benchmarks/nccl_gpu_rank.py JOB     (JSON, of nccl_gpu.py; ranks as torchrun's)

With OMNIHVD_ENABLE=0 they are NCCL's own. Rank 0 writes a JSON object for each point to the output.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import zlib
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import omnihvd
from omnihvd.bench.patterns import Point, is_total, part

# Sums before the first sample: connections and memory. A plan of the union follows the last eight
# unions that are 64 calls old.
WARM_UP = {"nccl": 8}
WARM_UP_OF_UNIONS = 80
COUNTERS = ("calls", "bytes_sent", "bytes_received", "ring_bytes", "library_bytes")


class Rank:
    """This process. Ranks exchange other messages over Gloo, not over the GPU."""

    def __init__(self, timeout_s: float) -> None:
        local_rank = int(os.environ["LOCAL_RANK"])
        self.device = torch.device("cuda", local_rank % torch.cuda.device_count())
        torch.cuda.set_device(self.device)
        timeout = timedelta(seconds=timeout_s)
        dist.init_process_group("nccl", timeout=timeout)
        self.beside = dist.new_group(backend="gloo", timeout=timeout)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.streams = [torch.cuda.current_stream(), torch.cuda.Stream()]
        self.group = dist.group.WORLD

    def renew(self) -> None:
        """A communicator of its own for each point: none has another point's plans."""
        if self.group is not dist.group.WORLD:
            dist.destroy_process_group(self.group)
        self.group = dist.new_group()

    def all_reduce(self, tensor: torch.Tensor, op: str) -> None:
        kind = dist.ReduceOp.AVG if op == "avg" else dist.ReduceOp.SUM
        dist.all_reduce(tensor, op=kind, group=self.group)

    def about(self) -> dict[str, str]:
        return {
            "device": torch.cuda.get_device_name(self.device),
            "nccl": ".".join(map(str, torch.cuda.nccl.version())),
        }

    def gather(self, value: Any) -> list[Any]:
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self.beside)
        return values

    def barrier(self) -> None:
        torch.cuda.synchronize()
        dist.barrier(group=self.beside)

    def seconds_of(self, *works: Callable[[], object]) -> list[float]:
        """Seconds of each on the device. All begin at once, on streams of their own."""
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in works]
        for stream, work, (start, end) in reversed(list(zip(self.streams, works, events))):
            with torch.cuda.stream(stream):
                start.record()
                work()
                end.record()
        torch.cuda.synchronize()
        return [float(start.elapsed_time(end)) / 1e3 for start, end in events]


def tensor_of(rank: Rank, point: Point, dtype: str) -> torch.Tensor:
    """The tensor to sum. bfloat16 has float16's: both represent its small integers exactly."""
    mine = torch.from_numpy(part(point, rank.rank, rank.size))
    return mine.to(rank.device, getattr(torch, dtype))


def verify(rank: Rank, tensor: torch.Tensor, point: Point, op: str) -> None:
    """Raises AssertionError unless rank 0 has the expected sum and all others have its bits."""
    got = tensor.cpu()
    if got.dtype == torch.bfloat16 or op == "avg":
        got = got.double() * (rank.size if op == "avg" else 1)
    result = got.numpy().astype(point.dtype)
    exact = op == "sum" or rank.size & (rank.size - 1) == 0
    good = rank.rank != 0 or is_total(result, point, rank.size, 0 if exact else 1e-2)
    answers = rank.gather((good, zlib.crc32(result.tobytes())))
    if not all(good for good, _ in answers):
        raise AssertionError(f"wrong {op} of {point}")
    if len({checksum for _, checksum in answers}) > 1:
        raise AssertionError(f"the ranks' results differ for {point}")


def ways() -> dict[str, int]:
    """The whole calls so far, by algorithm."""
    return {way: figures["calls"] for way, figures in omnihvd.stats()["ways"].items()}


def measure(rank: Rank, point: Point, job: dict[str, Any]) -> dict[str, Any]:
    original, op = tensor_of(rank, point, job["dtype"]), job["op"]
    warm_up = WARM_UP.get(job["way"], WARM_UP_OF_UNIONS)
    tensor = original.clone()
    seconds = []
    rank.renew()
    for number in range(warm_up + job["samples"]):
        if number == warm_up:
            ways_before = ways()
            before = omnihvd.stats()
        tensor.copy_(original)
        rank.barrier()
        (took,) = rank.seconds_of(lambda: rank.all_reduce(tensor, op))
        seconds.append(max(rank.gather(took)))  # a sample is the slowest rank's
        if number in (0, warm_up + job["samples"] - 1):
            verify(rank, tensor, point, op)
    after = omnihvd.stats()
    counters = {name: (after[name] - before[name]) / job["samples"] for name in COUNTERS}
    answer: dict[str, Any] = {"samples": seconds[warm_up:], "counters": rank.gather(counters)}
    if job["gemm"]:
        took = statistics.median(seconds[warm_up:])
        answer["gemm"] = beside_products(rank, original, op, took, job)
    made = {way: calls - ways_before.get(way, 0) for way, calls in ways().items()}
    answer["ways"] = [way for way, calls in made.items() if calls]
    return answer


def beside_products(
    rank: Rank, original: torch.Tensor, op: str, sum_s: float, job: dict[str, Any]
) -> dict[str, list[float]]:
    """Seconds, on the slowest rank, of matrix products that take longer than the sum: alone, and of
    them and the sum at once."""
    dtype = torch.float32 if rank.device.type == "cpu" else torch.bfloat16
    a, b = (torch.randn(job["gemm"], job["gemm"], device=rank.device, dtype=dtype) for _ in "ab")
    c, tensor = torch.empty_like(a), original.clone()

    def products(number: int) -> Callable[[], None]:
        def work() -> None:
            for _ in range(number):
                torch.mm(a, b, out=c)

        return work

    rank.seconds_of(products(3))
    one = max(rank.gather(rank.seconds_of(products(10))[0])) / 10
    enough = products(min(max(round(3 * sum_s / one), 4), 1000))
    answer: dict[str, list[float]] = {"alone": [], "beside": [], "sum_beside": []}
    for _ in range(job["samples"]):
        tensor.copy_(original)
        rank.barrier()
        answer["alone"].append(max(rank.gather(rank.seconds_of(enough)[0])))
        rank.barrier()
        both = rank.seconds_of(lambda: rank.all_reduce(tensor, op), enough)
        sums, beside = zip(*rank.gather(both))
        answer["beside"].append(max(beside))
        answer["sum_beside"].append(max(sums))
    return answer


def main(rank_of: Callable[[float], Rank] = Rank) -> None:
    job = json.loads(sys.argv[1])
    rank = rank_of(job["timeout"])
    for fields in job["points"]:
        point = Point(**fields)
        answer = measure(rank, point, job)
        if rank.rank == 0:
            answer |= rank.about()
            with Path(job["output"]).open("a") as file:
                file.write(json.dumps({"point": fields, **answer}) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
