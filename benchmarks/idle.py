"""Processor time of the engine's threads while a job computes between its allreduces.

    horovodrun -np 2 python benchmarks/idle.py [--seconds 10]

Reduces 4 MB every half second, computes in between, and prints the share of one core that the
engine's threads took outside the allreduces. They are streamed (OMNIHVD_WAY), which on one host
they would not be.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

import horovod.torch as hvd
import torch

import omnihvd

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.bench.source import source


def processor_seconds() -> dict[str, float]:
    """Processor seconds by thread of this process."""
    seconds = {}
    for task in Path("/proc/self/task").iterdir():
        seconds[task.name] = int((task / "schedstat").read_text().split()[0]) / 1e9
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=10)
    args = parser.parse_args()
    os.environ["OMNIHVD_WAY"] = "stream"
    torch.set_num_threads(1)
    hvd.init()
    before_engine = set(processor_seconds())
    tensor = torch.ones(1_000_000)
    matrix = torch.rand(300, 300)
    hvd.allreduce(tensor, op=hvd.Sum, name="first")
    engine = set(processor_seconds()) - before_engine
    assert engine and omnihvd.stats()["calls"] == 1, "omnihvd is not in use"
    busy = computing = 0.0
    while computing < args.seconds:
        before, start = processor_seconds(), time.perf_counter()
        while time.perf_counter() - start < 0.5:
            matrix @ matrix
        computing += time.perf_counter() - start
        after = processor_seconds()
        busy += sum(after[thread] - before[thread] for thread in engine)
        hvd.allreduce(tensor, op=hvd.Sum, name="next")
        time.sleep(0.01)  # the last messages' end belongs to the allreduce
    shares = hvd.allgather_object(busy / computing)
    if hvd.rank() == 0:
        found = {"engine_share_of_a_core": max(shares), "seconds": computing}
        print(json.dumps({**source(), **found}))


if __name__ == "__main__":
    main()
