"""Bytes on the link over the entropy of their content, by kind of tensor and density.

    python benchmarks/encoded_sizes.py [--megabytes M] [--ranks N ...] [--density D ...] ...

The protocol's state machines sum a tensor without any I/O, so the figures are exact: all bytes of
all messages between processes, with their headers, as `bytes_sent` of `stats()` counts them. The
entropy of a tensor of n elements with k non-zeros is k values and log2 C(n, k) bits. With whole
blocks it is the values and log2 C(blocks, non-zero blocks) bits. It is summed over all necessary
messages:

    contributions  each rank's part: colocated, all but its own aggregator's share
    results        the sum: to all N workers, colocated to N - 1

Both are counted together, and apart. Patterns are those of `omnihvd.bench.patterns`; `elements` has
single elements spread at random, the others whole blocks.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from omnihvd.bench import patterns

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "protocol"))
sys.path.append(str(Path(__file__).parents[1] / "build" / "tests"))
from _engine_tests import protocol
from network import Network

# As in omnihvd/csrc/engine/settings.cc.
MESSAGE_BYTES, SLOTS, SCAN_AHEAD = 57344, 8, 2048


class LeanNetwork(Network):
    """Without the checks on memory, which are slow."""

    def publish(self, index: int, message: object) -> None:
        if message is None:
            return
        data = message.bytes()
        for rank in range(len(self.workers)):
            self.bytes_down[index, rank] += len(data)
            self.post(("down", index, rank), data)
        self.results += 1
        self.post(("release", index, self.results), message)

    def contribute(self, rank: int, aggregator: int, message: object) -> None:
        data = message.bytes()
        self.bytes_up[rank, aggregator] += len(data)
        self.messages_up[rank, aggregator] += 1
        self.post(("up", rank, aggregator), data)

    def _up(self, rank: int, aggregator: int, data: bytes) -> None:
        self.publish(aggregator, self.aggregators[aggregator].on_message(data))

    def _release(self, index: int, _: int, message: object) -> None:
        for slot, round_ in message.frames:
            self.publish(index, self.aggregators[index].released(slot, round_))


def log2_binomial(n: int, k: int) -> float:
    return (math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)) / math.log(2)


def entropy_bytes(tensor: np.ndarray, units: np.ndarray) -> float:
    """The entropy of a tensor, (count,), with non-zeros in `units` of equal size."""
    k = int(np.count_nonzero(units))
    return k * (tensor.nbytes / max(1, len(units))) + log2_binomial(len(units), k) / 8


def least_bytes(
    tensor: np.ndarray, pattern: str, owners: np.ndarray, of: Callable[[int], float]
) -> float:
    """Entropy of the aggregators' shares, each as often as `of` says; `owners` of blocks."""
    owners = np.repeat(owners, patterns.BLOCK)[: len(tensor)]
    total = 0.0
    for aggregator in range(owners.max() + 1):
        share = tensor[owners == aggregator]
        units = share != 0
        if pattern != "elements":
            units = np.logical_or.reduceat(units, np.arange(0, len(share), patterns.BLOCK))
        total += of(aggregator) * entropy_bytes(share, units)
    return total


@dataclass
class Ratio:
    contributions: float
    results: float
    both: float


def measure(point: patterns.Point, ranks: int, dedicated: bool) -> Ratio:
    inputs = [patterns.part(point, rank, ranks) for rank in range(ranks)]
    total = sum(inputs[1:], inputs[0].copy())
    shape = protocol.Shape.fit(
        count=point.count, dtype=point.dtype, block_size=patterns.BLOCK, aggregators=ranks,
        max_slots=SLOTS, message_bytes=MESSAGE_BYTES,
    )  # fmt: skip
    # Memory of results is released at once, as the engine does when all of a result is copied.
    network = LeanNetwork(shape, inputs, in_place=True, scan_ahead=SCAN_AHEAD,
                          later=lambda event: event[0] != "release")  # fmt: skip
    network.run()
    np.testing.assert_array_equal(network.outputs[0], total)
    up = sum(b for (rank, agg), b in network.bytes_up.items() if dedicated or rank != agg)
    down = sum(b for (agg, rank), b in network.bytes_down.items() if dedicated or rank != agg)
    owners = np.array([shape.place_of(block)[0] for block in range(shape.blocks)])
    least_up = sum(
        least_bytes(tensor, point.pattern, owners, lambda a, r=rank: dedicated or a != r)
        for rank, tensor in enumerate(inputs)
    )
    least_down = least_bytes(
        total, point.pattern, owners, lambda a: ranks if dedicated else ranks - 1
    )
    both = (up + down) / (least_up + least_down)
    return Ratio(up / least_up, down / least_down, both)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--megabytes", type=float, default=100, help="size of the tensor")
    parser.add_argument("--ranks", type=int, nargs="+", default=[4])
    parser.add_argument("--density", type=float, nargs="+",
                        default=[0.1, 0.05, 0.01, 0.001, 0.0001])  # fmt: skip
    parser.add_argument("--patterns", nargs="+", default=["elements", "random", "zipf"],
                        choices=patterns.PATTERNS)  # fmt: skip
    parser.add_argument("--dtypes", nargs="+", default=["float32"])
    parser.add_argument("--output", type=Path, help="also write the table to this file")
    options = parser.parse_args()

    lines = [
        f"Bytes over entropy, tensors of {options.megabytes:g} MB "
        f"(`benchmarks/encoded_sizes.py`): contributions / results / **both**.",
        "",
        "| pattern | dtype | ranks | density | colocated | dedicated |",
        "|---|---|---|---|---|---|",
    ]
    print("\n".join(lines), flush=True)
    for dtype in options.dtypes:
        count = int(options.megabytes * 1e6) // np.dtype(dtype).itemsize
        for pattern in options.patterns:
            for ranks in options.ranks:
                for density in options.density:
                    point = patterns.Point(count, density, pattern, dtype)
                    cells = []
                    for dedicated in (False, True):
                        r = measure(point, ranks, dedicated)
                        cells.append(f"{r.contributions:.3f} / {r.results:.3f} / **{r.both:.3f}**")
                    name = f"| {pattern} | {dtype} | {ranks} | {density:.2%} "
                    lines.append(name + "".join(f"| {cell} " for cell in cells) + "|")
                    print(lines[-1], flush=True)
    if options.output:
        options.output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
