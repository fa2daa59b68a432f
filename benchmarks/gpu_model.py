#!/usr/bin/env python3
"""Estimates sums on GPUs by the model of omnihvd/csrc/nccl/gpu_model.h, against NCCL's own: for
jobs of 16 to 1,024 GPUs and tensors of 1 to 100 MB. Arithmetic: nothing here is measured.

    python benchmarks/gpu_model.py [--gpus-per-host 8] [--json FILE]

Servers have 8 H100 (NVLink) and 8 x 400 Gbit/s. NCCL's times follow from its own tuning constants
(2.27): the fastest of its trees (protocols LL, LL128, Simple) and its tree with NVLink SHARP. A
test compares these functions with the shim's. The table of docs/gpu.md comes from here.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator
from pathlib import Path

RANKS = (16, 32, 64, 128, 256, 512, 1024)
MEGABYTES = (1, 4, 10, 25, 50, 100)
UNIONS = (0.01, 0.1, 0.3)  # of the tensor's blocks
# Assumed: how long a sum's first kernel waits for multiprocessors beside other work: not at all; at
# high priority, for thread blocks to end; at normal priority, for whole kernels.
WAIT_US = (0, 60, 400)
BLOCK_BYTES, PART_BYTES = 1024, 64 << 20
HEADROOM, LOOKS, LEAST_GAIN = 1.25, 32, 1.05
DEVICE_BYTES_US = 1_500_000  # bandwidth of device memory
LOOK_NS, KERNEL_NS = 8_000, 3_000
# Nanoseconds of NCCL's algorithms: base, a step inside a server, one between; bytes a us.
TREES = (
    (6_800, 600, 5_000, 8_160),
    (14_000, 1_250, 8_500, 117_300),
    (8_400, 4_000, 14_000, 132_940),
    (25_000, 0, 20_900, 166_667),
)


def allreduce(ranks: int, hosts: int, nbytes: int) -> int:
    """Nanoseconds of NCCL's allreduce of so many bytes."""
    inside, between = ranks // hosts - 1, hosts.bit_length() - 1
    return min(
        base + 2 * (inside * near + between * far) + nbytes * 1000 // speed
        for base, near, far, speed in TREES
    )


def look(ranks: int, hosts: int, nbytes: int) -> int:
    """Nanoseconds to find the union of the blocks: marks, their maximum over the ranks, bits."""
    marks = allreduce(ranks, hosts, nbytes // BLOCK_BYTES + 1)
    return nbytes * 1000 // DEVICE_BYTES_US + LOOK_NS + marks


def united(ranks: int, hosts: int, summed: int) -> int:
    """Nanoseconds of a sum of so many of the bytes, after the look."""
    time, left = KERNEL_NS + 4 * summed * 1000 // DEVICE_BYTES_US, summed
    while left > 0:
        part = min(left, PART_BYTES)
        time += 2 * KERNEL_NS + allreduce(ranks, hosts, part)
        left -= part
    return time


def gain(ranks: int, hosts: int, nbytes: int, union: float, wait_us: int = 0) -> float:
    """NCCL's time over that of a sum on such a union."""
    own = look(ranks, hosts, nbytes) + united(ranks, hosts, int(min(HEADROOM * union, 1) * nbytes))
    return allreduce(ranks, hosts, nbytes) / (own + 1000 * wait_us)


def dense(ranks: int, hosts: int, nbytes: int, wait_us: int = 0) -> float:
    """NCCL's time over omnihvd's if NCCL sums the tensor: one of 32 calls looks at its blocks."""
    original = allreduce(ranks, hosts, nbytes)
    return original / (original + (look(ranks, hosts, nbytes) + 1000 * wait_us) / LOOKS)


def rows(per_host: int = 8) -> Iterator[dict[str, float]]:
    for mb, ranks, wait in itertools.product(MEGABYTES, RANKS, WAIT_US):
        hosts, nbytes = ranks // per_host, mb * 10**6
        yield {
            "mb": mb,
            "gpus": ranks,
            "wait_us": wait,
            "nccl_us": allreduce(ranks, hosts, nbytes) / 1000,
            "look_us": look(ranks, hosts, nbytes) / 1000,
            **{f"gain_{u:g}": gain(ranks, hosts, nbytes, u, wait) for u in UNIONS},
            "dense": dense(ranks, hosts, nbytes, wait),
        }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpus-per-host", type=int, default=8, choices=(1, 2, 4, 8))
    parser.add_argument("--json", type=Path, help="write the rows there as well")
    args = parser.parse_args()
    found = list(rows(args.gpus_per_host))
    print("   MB  GPUs  wait us   NCCL us  look us   gain at 1%   10%   30%  dense")
    for row in found:
        gains = "  ".join(f"{row[f'gain_{u:g}']:4.2f}" for u in UNIONS)
        print(
            f"{row['mb']:5} {row['gpus']:5} {row['wait_us']:8}"
            f" {row['nccl_us']:9.0f} {row['look_us']:8.0f}"
            f"         {gains}  {row['dense']:.3f}"
        )
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
