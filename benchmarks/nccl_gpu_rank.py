"""What each rank of benchmarks/nccl_gpu.py runs: verifies and times sums of one tensor on a GPU.

    python benchmarks/nccl_gpu_rank.py JOB     (JSON: points, samples, output; ranks as torchrun's)

With OMNIHVD_ENABLE=0 they are NCCL's own. Rank 0 writes a JSON object for each point to the output.
"""

from __future__ import annotations

import json
import os
import sys
import zlib
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import omnihvd
from omnihvd.bench.patterns import BLOCK, Point, is_total, part

WARM_UP = 2  # sums before the first sample: connections, staging memory
COUNTERS = ("calls", "bytes_sent", "bytes_received", "nonzero_blocks", "result_blocks")


class Rank:
    """This process. What the ranks tell each other meanwhile goes over Gloo, not over the GPU."""

    def __init__(self, timeout_s: float) -> None:
        local_rank = int(os.environ["LOCAL_RANK"])
        self.device = torch.device("cuda", local_rank % torch.cuda.device_count())
        torch.cuda.set_device(self.device)
        timeout = timedelta(seconds=timeout_s)
        dist.init_process_group("nccl", timeout=timeout)
        self.beside = dist.new_group(backend="gloo", timeout=timeout)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def gather(self, value: Any) -> list[Any]:
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self.beside)
        return values

    def barrier(self) -> None:
        torch.cuda.synchronize()
        dist.barrier(group=self.beside)

    def seconds_on_device(self, work: Any) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3


def verify(rank: Rank, tensor: torch.Tensor, point: Point) -> None:
    """Raises AssertionError unless rank 0 has the expected sum and all others have its bits."""
    got = tensor.cpu().numpy()
    good = rank.rank != 0 or is_total(got, point, rank.size)
    answers = rank.gather((good, zlib.crc32(got.tobytes())))
    if not all(good for good, _ in answers):
        raise AssertionError(f"wrong sum of {point}")
    if len({checksum for _, checksum in answers}) > 1:
        raise AssertionError(f"the ranks' results differ for {point}")


def measure(rank: Rank, point: Point, samples: int) -> dict[str, Any]:
    original = torch.from_numpy(part(point, rank.rank, rank.size)).to(rank.device)
    tensor = original.clone()
    seconds = []
    for number in range(WARM_UP + samples):
        if number == WARM_UP:
            before = omnihvd.stats()
        tensor.copy_(original)
        rank.barrier()
        took = rank.seconds_on_device(lambda: dist.all_reduce(tensor))
        seconds.append(max(rank.gather(took)))  # a sample is the slowest rank's
        if number in (0, WARM_UP + samples - 1):
            verify(rank, tensor, point)
    after = omnihvd.stats()
    counters = {name: (after[name] - before[name]) / samples for name in COUNTERS}
    return {"samples": seconds[WARM_UP:], "counters": rank.gather(counters)}


def compact_samples(rank: Rank, point: Point, samples: int) -> list[float]:
    """Of the shim's first kernel alone, on rank 0 while the others wait: it reads the tensor, and
    writes the non-zero blocks to pinned memory of the host."""
    seconds: list[float] = []
    if rank.rank == 0:
        import cupy

        from omnihvd import kernels

        tensor = torch.from_numpy(part(point, 0, rank.size)).to(rank.device)
        blocks = -(-point.count // BLOCK)
        totals = torch.zeros(2, dtype=torch.int64, device=rank.device)
        bitmap = torch.zeros(-(-blocks // 32), dtype=torch.int32, device=rank.device)
        records = torch.empty(2 * blocks, dtype=torch.int64, pin_memory=True)
        data = torch.empty(BLOCK * blocks + 256, dtype=tensor.dtype, pin_memory=True)
        function = kernels.module(point.dtype, BLOCK).get_function("compact")
        per_cta = 4 * 8192 // tensor.element_size()  # as in kernels/abi.cuh
        grid = (min(-(-point.count // per_cta), 32),)  # as in the shim
        addresses = [np.uint64(a.data_ptr()) for a in (totals, bitmap, records, data)]
        head = [np.uint64(tensor.data_ptr()), np.uint64(point.count), np.uint64(0), np.uint32(0)]
        packed = np.uint32(1)

        def compact() -> None:
            totals.zero_()
            bitmap.zero_()
            with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
                function(grid, (128,), (*head, packed, *addresses))

        seconds = [rank.seconds_on_device(compact) for _ in range(WARM_UP + samples)][WARM_UP:]
        found = int(totals[0])
        padded = np.pad(tensor.cpu().numpy(), (0, blocks * BLOCK - point.count))
        assert found == padded.reshape(-1, BLOCK).any(1).sum(), "compact found other blocks"
    rank.barrier()
    return seconds


def main() -> None:
    job = json.loads(sys.argv[1])
    rank = Rank(job["timeout"])
    for fields in job["points"]:
        point = Point(**fields)
        answer = measure(rank, point, job["samples"])
        if job["compact"]:
            answer["compact_samples"] = compact_samples(rank, point, job["samples"])
        if rank.rank == 0:
            answer["device"] = torch.cuda.get_device_name(rank.device)
            answer["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
            with Path(job["output"]).open("a") as file:
                file.write(json.dumps({"point": fields, **answer}) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
