"""Which part of a gradient is sent: the rules, independent of any framework.

Block rules follow the block gradient sparsifiers of OmniReduce (SIGCOMM 2021): the unit is the one
that the transport skips when it is zero. `ElementThreshold` is the hard-threshold sparsifier of
Sahu et al., "Rethinking gradient sparsification as total error minimization" (NeurIPS 2021).
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Union


@dataclass(frozen=True)
class TopBlocks:
    """The `ratio` of a parameter's blocks with the largest L2 norm."""

    ratio: float


@dataclass(frozen=True)
class RandomBlocks:
    """A random `ratio` of a parameter's blocks, the same on all ranks.

    Blocks take turns: each is drawn with the same chance, but none waits long for the next time,
    which is what hurts under error feedback.
    """

    ratio: float
    seed: int


@dataclass(frozen=True)
class ThresholdBlocks:
    """The blocks whose L2 norm is at least `threshold`."""

    threshold: float


@dataclass(frozen=True)
class ElementThreshold:
    """The elements whose absolute value exceeds `threshold`."""

    threshold: float


Rule = Union[TopBlocks, RandomBlocks, ThresholdBlocks, ElementThreshold]


@dataclass(frozen=True)
class WarmUp:
    """The ratio falls exponentially from `start` over `epochs` (Lin et al., ICLR 2018, 3.3)."""

    epochs: float
    start: float
    steps_per_epoch: int | None

    def ratio(self, final: float, epoch: float) -> float:
        return self.start * (final / self.start) ** min(1.0, max(0.0, epoch / self.epochs))


def kept_count(ratio: float, blocks: int) -> int:
    """How many of `blocks` a ratio keeps: the nearest number, but at least one."""
    return min(blocks, max(1, int(ratio * blocks + 0.5)))


def random_turn(step: int, count: int, blocks: int) -> tuple[int, int]:
    """Which shuffle of the blocks `step` draws from, and the first of the `count` that it takes.

    A shuffle lasts until all its blocks have had their turn; the last turn goes back for some that
    have had theirs, where `count` does not divide `blocks`.
    """
    shuffle, turn = divmod(step, -(-blocks // count))
    return shuffle, min(turn * count, blocks - count)


def name_seed(name: str) -> int:
    """A number that is the same for a parameter's name in every process."""
    return zlib.crc32(name.encode())
