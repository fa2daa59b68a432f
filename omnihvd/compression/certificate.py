"""A certificate of what compression did: how near is what the optimizer gets to the true gradient?

Compared in each step, with the training's op (hvd.Average or hvd.Sum):

    true       the ranks' gradients as the backward pass left them, before clipping, momentum
               correction and residual, summed whole
    received   the result that the optimizer gets on every rank: what all ranks sent, decoded,
               united and summed, residuals of earlier steps included

So it is about the sum, not one rank's part, and about this step: what comes late is an error twice,
when it is missing and when it comes. No paper in docs/compression.md has such a measure.

A step sums one block in EVERY whole as well, by its number's remainder; in EVERY steps each has its
turn. Over these, EVERY times a dot product of the step's blocks is an unbiased estimate of that of
all. Cosine and error are those of sums of such estimates.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from typing import Any, NamedTuple

from omnihvd.compression import counters
from omnihvd.compression.arrays import np

EVERY = 256
ALONE = {"prescale_factor": 2.0, "postscale_factor": 0.5}  # Horovod fuses it with no gradient
STRIDE = 101  # odd, so that each remainder has its turn; neighbours in time are far apart
ENOUGH = 16  # blocks for a decision of the floor
SETTLE = 4  # steps after a change of the level that decide nothing
CALM = 8  # decisions far above the floor, until the level falls


class Products(NamedTuple):
    """Dot products over all elements, or estimates of them."""

    true: float = 0.0  # with itself
    received: float = 0.0  # with itself
    both: float = 0.0

    def cosine(self) -> float | None:
        norms = math.sqrt(self.true) * math.sqrt(self.received)
        return self.both / norms if norms else None

    def relative_error(self) -> float | None:
        error = max(self.true - 2 * self.both + self.received, 0.0)
        return math.sqrt(error / self.true) if self.true else None


class Gauge:
    """Counts a compressor's estimates and, with a floor, decides how much is sent.

    Level 0 is as configured, each further one sends about twice as much, `last` all. A cosine below
    the floor raises the level, one below 0 to the last; CALM in the upper half above it lower it.
    Votes for the level are summed with the blocks, so ranks that round differently agree, too.
    """

    def __init__(self, floor: float | None, rule: Any) -> None:
        self._floor, self._seen, self._blocks = floor, Products(), 0
        self.last = math.ceil(-math.log2(getattr(rule, "ratio", 2.0**-8)))
        self.level = self.vote = self._calm = 0
        self.models: dict[Any, Blocks] = {}  # by their sizes: each step may have a new tape

    def note(self, found: Products, blocks: int, level: float) -> None:
        """blocks: as many were compared. level: the mean of the votes."""
        self.level = round(level)
        if not all(map(math.isfinite, found)):
            return
        counters.add(certified_steps=1, **{f"certified_{k}": v for k, v in found._asdict().items()})
        self._blocks += blocks
        if self._blocks <= 0:
            return
        self._seen = Products(*(a + b for a, b in zip(self._seen, found)))
        cosine = self._seen.cosine()
        if self._floor is None or self._blocks < ENOUGH or cosine is None:
            return
        before, self._seen = self.vote, Products()
        self._calm = self._calm + 1 if cosine > (1 + self._floor) / 2 else 0
        if cosine < self._floor:
            self.vote = self.last if cosine < 0 else min(self.vote + 1, self.last)
        elif self._calm >= CALM:
            self.vote, self._calm = max(self.vote - 1, 0), 0
        self._blocks = -SETTLE * blocks if self.vote != before else 0


class Blocks:
    """The blocks of a model, and a step's choice, the same on all ranks. Block n has the place n //
    EVERY in the array that is summed; behind it is the vote, of `ranks` (in averages of 1)."""

    def __init__(self, gauge: Gauge, sizes: Iterable[int], block_size: int) -> None:
        """sizes: each parameter's number of elements."""
        if os.environ.get("HOROVOD_ELASTIC") == "1":  # a new rank would not know the step
            raise ValueError("certificates and floors are not for elastic jobs: leave them out")
        self.gauge, self.step, self._block_size, self._first = gauge, 0, block_size, [0]
        for elements in sizes:
            self._first.append(self._first[-1] - elements // -block_size)
        self._places = -(self._first[-1] // -EVERY)
        self.length = self._places * block_size + 1  # of the array

    def put(self, out: Any, number: int, flat: Any) -> None:
        """Copies this step's blocks of the parameter of this number to their places in `out`."""
        size, first = self._block_size, self._first[number]
        start, whole = (STRIDE * self.step - first) % EVERY, len(flat) // size
        at = (first + start) // EVERY * size
        rows = flat[: whole * size].reshape(whole, size)[start::EVERY]
        out[at : at + len(rows) * size] = rows.reshape(-1)
        short = flat[whole * size :]
        if len(short) and whole % EVERY == start:
            at += whole // EVERY * size
            out[at : at + len(short)] = short

    def compare(self, summed: np.ndarray, received: np.ndarray, ranks: int) -> None:
        a, b = (array[:-1].astype(np.float64) for array in (summed, received))
        found = (EVERY * float(np.dot(*pair)) for pair in ((a, a), (b, b), (a, b)))
        self.gauge.note(Products(*found), self._places, float(summed[-1]) / ranks)
