"""Runs on each rank of a benchmark: verifies and times points with one backend.

Started by benchmarks.bench.session, which tells rank 0 what to measure next, over a socket.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import socket
import sys
import time
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.bench.meeting import Meeting
from benchmarks.bench.reducers import BACKENDS, DEDICATED
from omnihvd.bench.patterns import BLOCK, Point, is_total, part

COUNTERS = (
    "calls",
    "bytes_sent",
    "bytes_received",
    "bytes_copied",
    "messages_sent",
    "nonzero_blocks",
)


def read_seconds(meeting: Meeting, x: np.ndarray) -> float:
    """Time in which all ranks, at once, read their tensors from memory."""
    words = x[: len(x) // 8 * 8].view(np.int64)
    begin = meeting.begin()
    np.bitwise_or.reduce(words)
    end = time.monotonic()
    return float(max(meeting.gather(end)) - begin)


TRIED_S = 15.0  # of sums; after that, warm-up no longer waits for the trials of algorithms
ALIKE = 9  # trials of close algorithms come 8 sums apart
MOST_WARM_UP = 100  # sums
LONG_S = 0.5  # sums that together take longer have filled caches and connections
COMPUTED = np.zeros(16_384)


@dataclass(frozen=True)
class Visit:
    """One measurement: sums of one point."""

    point: Point
    is_first: bool  # of this point: the sum is verified, and warmed up
    min_seconds: float = 0  # of samples
    min_runs: int = 0
    max_seconds: float | None = None  # of samples, however few these are
    compute_s: float = 0  # that each rank computes before each sum

    def as_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Visit:
        fields = json.loads(text)
        return Visit(**{**fields, "point": Point(**fields["point"])})


def compute(seconds: float) -> None:
    """Computes as training does between its sums, on the core, with memory of its own."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        np.tanh(COMPUTED, out=COMPUTED)


def is_warm(counts: list[dict[str, int]], spent: float) -> bool:
    """Whether warm-up is over. counts: calls of each algorithm after each sum; empty for backends
    without algorithms."""
    if not counts[-1]:
        return spent > LONG_S or len(counts) >= 16
    if len(counts) < 16 or spent > TRIED_S:
        return spent > TRIED_S
    recent = counts[-1 - ALIKE]
    return sum(n != recent.get(k, 0) for k, n in counts[-1].items()) == 1


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


def is_enough(samples: list[float], visit: Visit) -> bool:
    """Whether these samples, in seconds, suffice."""
    spent = sum(samples)
    if visit.max_seconds is not None and samples and spent >= visit.max_seconds:
        return True
    is_long = spent >= visit.min_seconds or len(samples) >= 1000
    return len(samples) >= visit.min_runs and is_long


class Measuring:
    """One visit, on each rank."""

    def __init__(self, backend: Any, meeting: Meeting, visit: Visit, others: list[int]) -> None:
        """others: processes with processor time that counts, too."""
        self.backend, self.meeting, self.visit, self.others = backend, meeting, visit, others
        self.sums: list[float] = []  # seconds of the slowest rank, of all sums
        self.cpu = 0.0  # of this rank, while it reduces; not while it waits or compares times

    def sum(self) -> None:
        self.backend.restore()
        compute(self.visit.compute_s)
        self.meeting.begin()
        self.cpu -= cpu_seconds(self.others)
        start = time.perf_counter()
        self.backend.reduce()
        seconds = time.perf_counter() - start
        self.cpu += cpu_seconds(self.others)
        self.sums.append(max(self.meeting.gather(seconds)))

    def verify(self) -> None:
        result = self.backend.result()
        # All ranks have the same bits, or the next gather says otherwise.
        if self.meeting.rank == 0 and not is_total(
            result, self.visit.point, self.meeting.size, self.backend.most_error
        ):
            raise AssertionError(f"wrong sum of {self.visit.point}")
        if len(set(self.meeting.gather(zlib.crc32(result.tobytes())))) > 1:
            raise AssertionError(f"the ranks' results differ for {self.visit.point}")

    def warm_up(self) -> None:
        """Fills caches and connections. For omnihvd it goes on until all algorithms have been
        tried: then the last sums all used the same one."""
        counts: list[dict[str, Any]] = []
        while len(self.sums) < MOST_WARM_UP:
            ways = self.backend.stats().get("ways", {})
            counts.append({k: way["calls"] for k, way in ways.items()})
            if self.meeting.gather(is_warm(counts, sum(self.sums)))[0]:
                break
            self.sum()

    def settle(self) -> None:
        """Makes uncounted sums after other backends' turns: one, or two short ones. omnihvd makes
        as many again, since it expects the last density that it saw, another point's."""
        chooses = bool(self.backend.stats().get("ways"))
        while len(self.sums) < 2 and (chooses or sum(self.sums) < LONG_S):
            self.sum()

    def samples(self) -> list[float]:
        done, self.cpu = len(self.sums), 0.0
        while not is_enough(self.sums[done:], self.visit):
            self.sum()
        return self.sums[done:]


def measure(measuring: Measuring, reads: dict[int, float]) -> dict[str, Any]:
    """reads: read_seconds() by bytes of a tensor, as far as known already."""
    backend, meeting, visit = measuring.backend, measuring.meeting, measuring.visit
    point = visit.point
    x = part(point, meeting.rank, meeting.size)
    backend.prepare(x, point)
    if point.bytes not in reads:
        reads[point.bytes] = min(read_seconds(meeting, x) for _ in range(3))
    if visit.is_first:
        measuring.sum()
        measuring.verify()
        measuring.warm_up()
    else:
        measuring.settle()
    before = backend.stats()
    samples = measuring.samples()
    after = backend.stats()
    sums = max(1, len(samples))
    counters = {name: (after[name] - before[name]) / sums for name in COUNTERS if name in after}
    answer = {
        "point": asdict(point),
        "sums": measuring.sums,
        "samples": samples,
        "read_s": reads[point.bytes],
        "cpu_s": sum(meeting.gather(measuring.cpu)) / sums,
        "counters": meeting.gather(counters),
    }
    backend.prepare(np.zeros(BLOCK, np.float32), Point(BLOCK, 1))  # frees memory for others
    return answer


def main() -> None:
    backend_name, address = sys.argv[1:]
    env, reads = os.environ, dict[int, float]()
    rank, size = (
        int(next(env[name] for name in names if name in env))
        for names in (("OMPI_COMM_WORLD_RANK", "PMI_RANK"), ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE"))
    )
    place = (env["MASTER_ADDR"], int(env["MEETING_PORT"]))
    meeting = Meeting(rank, size, place, env["MEETING_KEY"].encode())
    backend = BACKENDS[backend_name]()
    import torch

    torch.set_num_threads(1)
    others = aggregators() if backend_name in DEDICATED and rank == 0 else []
    with contextlib.ExitStack() as stack:
        if rank == 0:
            connection = stack.enter_context(socket.socket(socket.AF_UNIX))
            connection.connect(address)
            driver = stack.enter_context(connection.makefile("rw"))
        while wanted := meeting.gather(driver.readline() if rank == 0 else None)[0]:
            visit = Visit.from_json(wanted)
            answer = measure(Measuring(backend, meeting, visit, others), reads)
            if rank == 0:
                print(json.dumps(answer), file=driver, flush=True)
    backend.close()


if __name__ == "__main__":
    main()
