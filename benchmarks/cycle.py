"""The gain from ending Horovod's cycle when the training begins to wait, with it and without.

    sudo python benchmarks/cycle.py    # two ranks on one host, and on two at 10 Gbit/s; four

Ranks begin together (skewed: up to 2 ms apart) at any point of a cycle. A sample is the time from
the last rank's begin to the last rank's end. Both variants take turns in one job.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
RESULT = Path(__file__).parent / "results" / "cycle.json"
# name: tensors, bytes of each, seconds that ranks may be apart
CASES = {
    "4 KiB": (1, 4096, 0.0),
    "256 KiB": (1, 1 << 18, 0.0),
    "1 MB": (1, 1_000_000, 0.0),
    "10 MB": (1, 10_000_000, 0.0),
    "100 of 4 KiB": (100, 4096, 0.0),
    "4 KiB, skewed": (1, 4096, 0.002),
    "1 MB, skewed": (1, 1_000_000, 0.002),
}
BLOCKS, SAMPLES = 8, 25


def rank_main(output: Path) -> None:
    import horovod.torch as hvd
    import torch

    import omnihvd
    from omnihvd.intercept import waiting

    def sums_made() -> int:
        stats = omnihvd.stats()
        left = (why["calls"] for name, why in stats["passed"].items() if name != "control")
        return int(stats["calls"] + sum(left))

    def sample(tensors: list[Any], apart: float) -> tuple[float, float]:
        start = torch.tensor([time.monotonic() + 0.004], dtype=torch.float64)
        begin = float(hvd.broadcast(start, 0, name="start"))
        begin += alike.random() * 0.002 + random.random() * apart
        time.sleep(max(0, begin - time.monotonic() - 0.0002))
        while time.monotonic() < begin:
            pass
        handles = [hvd.allreduce_async_(x, op=hvd.Sum, name=f"{i}") for i, x in enumerate(tensors)]
        for handle in handles:
            hvd.synchronize(handle)
        return begin, time.monotonic()

    torch.set_num_threads(1)
    hvd.init()
    alike = random.Random(1)
    answers = {}
    for name, (count, size, apart) in CASES.items():
        tensors = [torch.ones(size // 4) for _ in range(count)]
        samples: dict[str, list[float]] = {"without": [], "with": []}
        sums = {"without": 0, "with": 0}
        for block in range(2 * BLOCKS + 2):
            hvd.barrier()
            if block % 2:
                waiting.install_hooks()
            else:
                omnihvd.engine.hook.remove(waiting.SLEEP)
            hvd.barrier()
            before = sums_made()
            ranks = [sample(tensors, apart) for _ in range(SAMPLES)], sums_made() - before
            if block < 2:
                continue
            way = ("without", "with")[block % 2]
            sums[way] += ranks[1]
            for times in zip(*hvd.allgather_object(ranks[0])):
                took = max(end for _, end in times) - max(begin for begin, _ in times)
                samples[way].append(round(took, 6))
        answers[name] = {
            way: {"samples": taken, "sums": sums[way] / len(taken)}
            for way, taken in samples.items()
        }
    if hvd.rank() == 0:
        output.write_text(json.dumps(answers))
    hvd.shutdown()


def main() -> None:
    from benchmarks.bench.command import machine
    from benchmarks.bench.lab import Lab

    results = {}
    os.environ["OMNIHVD_LOG"] = "error"
    for name, hosts, rate in (
        ("one host", 1, None),
        ("two hosts, 10 Gbit/s", 2, "10gbit"),
        ("four hosts, 10 Gbit/s", 4, "10gbit"),
    ):
        with tempfile.TemporaryDirectory() as folder, Lab(hosts, rate=rate) as lab:
            output = Path(folder) / "answers"
            words = [sys.executable, __file__, str(output)]
            lab.mpirun(words, hosts=lab.hosts, ranks_per_host=max(1, 2 // hosts), timeout=120)
            results[name] = json.loads(output.read_text())
    RESULT.write_text(json.dumps({"about": machine(), **results}) + "\n")
    for name, cases in results.items():
        for case, ways in cases.items():
            row = [f"{statistics.median(way['samples']) * 1e3:.2f} ms" for way in ways.values()]
            print(f"{name} | {case} | without, with: {', '.join(row)}")


if __name__ == "__main__":
    rank_main(Path(sys.argv[1])) if len(sys.argv) > 1 else main()
