"""Random allreduces: shapes, tensors and schedules, as hypothesis strategies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from _engine_tests import protocol
from hypothesis import strategies as st
from network import ACCUMULATOR_BYTES, STORAGE, Network, encode

# Values are integers up to this: float sums of 64 of them are exact in the accumulator.
LARGEST = {
    "float16": 509,
    "bfloat16": 251,
    "float32": 65521,
    "float64": 1 << 40,
    "int8": 127,
    "uint8": 127,
    "int32": (1 << 31) - 1,
    "int64": (1 << 62) - 57,
}
ELEMENTS = 1 << 17  # of all workers together: keeps a case under about 100 ms
SKEWS = ["random", "front", "identical", "disjoint", "periodic", "one worker"]


def values(rank: int, count: int, dtype: str) -> np.ndarray:
    """Non-zero integers, as different per rank and index as the dtype allows, of both signs."""
    index = np.arange(count, dtype=np.uint64)
    mixed = (index * np.uint64(64) + np.uint64(rank)) * np.uint64(0x9E3779B97F4A7C15)
    magnitude = (mixed >> np.uint64(1)) % np.uint64(LARGEST[dtype]) + np.uint64(1)
    if dtype == "uint8":
        return magnitude.astype(np.int64)
    return np.where(mixed & np.uint64(1), 1, -1) * magnitude.astype(np.int64)


def blocks_with_data(
    random: np.random.Generator, workers: int, blocks: int, density: float, skew: str
) -> np.ndarray:
    """Which blocks each worker has: bool [workers, blocks]."""
    where = random.random((workers, blocks)) < density
    block = np.arange(blocks)
    rank = np.arange(workers)[:, None]
    if skew == "front":  # like an embedding table: most rows drawn lie at the front
        where = random.random((workers, blocks)) < density * 16 / (16 + block)
    elif skew == "identical":
        where[:] = where[0]
    elif skew == "disjoint":
        where &= block * 7 % workers == rank
    elif skew == "periodic":
        where = (block + rank) % max(1, round(1 / max(density, 1e-3))) == 0
    elif skew == "one worker":
        where &= rank == workers // 2
    return where


@dataclass(frozen=True)
class Case:
    workers: int
    aggregators: int
    dtype: str
    count: int
    block_size: int
    slots: int
    window: int
    stripe: int
    density: float  # of blocks
    fill: float  # of the elements of a block that has any
    skew: str
    scan_ahead: int
    start_slots: int
    ordered: bool
    in_place: bool
    schedule: str
    seed: int
    owner: int | None = None  # of a reduce

    def shape(self) -> Any:
        return protocol.Shape(
            count=self.count, dtype=self.dtype, block_size=self.block_size,
            aggregators=self.aggregators, slots=self.slots, window=self.window, stripe=self.stripe,
            owner=self.owner,
        )  # fmt: skip

    def inputs(self) -> list[np.ndarray]:
        random = np.random.default_rng(self.seed)
        blocks = -(-self.count // self.block_size)
        where = blocks_with_data(random, self.workers, blocks, self.density, self.skew)
        inputs = []
        for rank in range(self.workers):
            keep = np.repeat(where[rank], self.block_size)[: self.count]
            keep &= random.random(self.count) < self.fill
            inputs.append(encode(values(rank, self.count, self.dtype) * keep, self.dtype))
        return inputs

    def network(self, inputs: list[np.ndarray], kind: type = Network, **other: Any) -> Network:
        arguments = {
            "in_place": self.in_place, "ordered": self.ordered, "scan_ahead": self.scan_ahead,
            "start_slots": self.start_slots, "seed": self.seed, "later": SCHEDULES[self.schedule],
        }  # fmt: skip
        return kind(self.shape(), inputs, **{**arguments, **other})

    def accumulator_bound(self) -> int:
        """Two versions of each slot's window: sums, and what is packed of them for sending."""
        itemsize = np.dtype(STORAGE[self.dtype]).itemsize
        block = self.block_size * (ACCUMULATOR_BYTES[self.dtype] + itemsize)
        return self.slots * 2 * self.window * block

    def round_bound(self, aggregator: int, slot: int, inputs: list[np.ndarray]) -> int:
        """frame.h's promise: a round is full, or it is the first, or the last, or moves on by
        scan_ahead positions."""
        shape = self.shape()
        any_rank = np.flatnonzero(blocks_of(np.any([i != 0 for i in inputs], 0), self.block_size))
        places = [shape.place_of(int(block)) for block in any_rank]
        mine = sum((a, s) == (aggregator, slot) and p >= self.window for a, s, p in places)
        ahead = max(self.scan_ahead, self.window)
        return 2 + mine // self.window + shape.positions(slot) // ahead


def blocks_of(array: np.ndarray, block_size: int) -> np.ndarray:
    """For each block, whether any element is set."""
    if len(array) == 0:
        return array
    return np.logical_or.reduceat(array, np.arange(0, len(array), block_size))


SCHEDULES: dict[str, Callable[[tuple], bool]] = {
    "random": lambda event: False,
    "release late": lambda event: event[0] == "release",
    "release early": lambda event: event[0] != "release",
    "results last": lambda event: event[0] == "down",
    "start last": lambda event: event[0] == "start",
    "slow sender": lambda event: event[:2] in (("start", 0), ("up", 0)),
    "slow receiver": lambda event: event[0] == "release" or event[::2] == ("down", 0),
}


@st.composite
def cases(draw: st.DrawFn, **other: st.SearchStrategy) -> Case:
    """Any case; `other` narrows some of its fields."""

    def choose(name: str, strategy: st.SearchStrategy) -> Any:
        return draw(other.get(name, strategy), label=name)

    workers = choose("workers", st.sampled_from([1, 2, 3, 4, 8, 13, 32, 64]) | st.integers(1, 64))
    aggregators = choose("aggregators", st.integers(1, 8))
    sizes = [8, 32, 1, 2, 7, 100, 256, 1024]
    block_size = choose("block_size", st.sampled_from(sizes) | st.integers(1, 1024))
    slots = choose("slots", st.integers(1, 5))
    stripe = choose("stripe", st.integers(1, 5))
    window = choose("window", st.integers(1, 5).map(lambda stripes: stripes * stripe))
    # Counts around the borders of blocks, stripes, windows and rows of windows, and any.
    most = max(1, min(ELEMENTS // workers, 600 * block_size))
    units = [1, block_size, stripe * block_size, window * block_size]
    units += [units[-1] * aggregators, units[-1] * aggregators * slots]
    borders = st.tuples(st.sampled_from(units), st.integers(1, 12), st.integers(-1, 1)).map(
        lambda b: min(most, max(0, b[0] * b[1] + b[2]))
    )
    counts = st.integers(most // 3, most)
    return Case(
        workers=workers, aggregators=aggregators, block_size=block_size, slots=slots,
        stripe=stripe, window=window,
        dtype=choose("dtype", st.sampled_from(list(STORAGE))),
        count=choose("count", borders | counts | counts),
        density=choose("density", st.sampled_from([0.1, 0.3, 1, 0.7, 0.03, 0.01, 0])),
        fill=choose("fill", st.sampled_from([1, 0.5, 0.1, 0.01])),
        skew=choose("skew", st.sampled_from(SKEWS)),
        scan_ahead=choose("scan_ahead", st.integers(0, 40) | st.just(2048)),
        start_slots=choose("start_slots", st.sampled_from([1, 3, 1 << 30])),
        ordered=choose("ordered", st.booleans()),
        in_place=choose("in_place", st.booleans()),
        schedule=choose("schedule", st.sampled_from(list(SCHEDULES))),
        seed=choose("seed", st.integers(1, 1 << 30)),
    )  # fmt: skip
