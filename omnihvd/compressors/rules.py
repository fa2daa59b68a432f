"""Which part of a gradient is sent: what all rules have in common, and the rules for whole blocks.

Block rules follow the block gradient sparsifiers of OmniReduce (SIGCOMM 2021): the unit is the one
that the transport skips when it is zero. Rules for elements, in methods/, are a page each.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Rule:
    """A dataclass's fields are the arguments of `factory`, in omnihvd.compressors.

    A rule that has a `ratio` can be warmed up.
    """

    factory: ClassVar[str]
    selects: ClassVar[bool] = False  # sends a `ratio` of the gradient's own values
    adjustable: ClassVar[bool] = False  # ranks may send different shares of their gradients
    momentum: ClassVar[float] = 0.0  # by default
    error_feedback: ClassVar[bool | None] = True  # by default; None: it keeps nothing to send later
    # Where it does not send a part of each gradient: the modules that make its sums (torch_...,
    # tensorflow_...), or that replacement() is what is sent.
    sums: ClassVar[str] = ""
    replaces: ClassVar[bool] = False

    def memory(self, name: str, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
        """What is kept of a parameter besides the rest, as it is at first."""
        return {}

    def replacement(
        self, gradient: Any, name: str, memory: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """What is sent of a parameter's gradient, its like, and what the rule keeps of it. memory:
        what it kept before (None: as it is)."""
        raise NotImplementedError

    def takes(self, shape: tuple[int, ...]) -> bool:
        """Whether such a parameter's sums are made by `sums`; else it is sent whole."""
        return False

    def check_use(self, averages: bool, grouped: bool) -> None:
        """ValueError where an optimizer of Horovod's with that op, and groups, is not for it."""

    def received(self, ops: ModuleType, gradient: Any, ranks: int) -> Any:
        """The gradient for the optimizer, of what the ranks' sum or average is."""
        return gradient

    @property
    def has_second_step(self) -> bool:
        """Whether a sum of what is sent is not all: DDP's hooks do no more."""
        return bool(self.sums) or type(self).received is not Rule.received

    def arguments(self) -> list[tuple[str, str]]:
        """The factory's, as texts."""
        return [(name, repr(value)) for name, value in vars(self).items()]


@dataclass(frozen=True)
class BlockRule(Rule):
    """Sends whole blocks."""


@dataclass(frozen=True)
class TopBlocks(BlockRule):
    """The `ratio` of a parameter's blocks with the largest L2 norm."""

    factory = "block_topk"
    adjustable = True
    selects = True
    ratio: float


@dataclass(frozen=True)
class RandomBlocks(BlockRule):
    """A random `ratio` of a parameter's blocks, the same on all ranks.

    Blocks take turns: each is drawn with the same chance, but none waits long for the next time,
    which is what hurts under error feedback.
    """

    factory = "block_random"
    selects = True
    ratio: float
    seed: int


@dataclass(frozen=True)
class ThresholdBlocks(BlockRule):
    """The blocks whose L2 norm is at least `threshold`."""

    factory = "block_threshold"
    adjustable = True
    threshold: float


class CodedRule(Rule):
    """Sends codes, which cannot be added: by part_sums.py. Flat float32 in, flat uint8 out."""

    sums = "parts"

    def values(self, gradient: np.ndarray, memory: dict[str, np.ndarray]) -> np.ndarray:
        """What is encoded of a gradient, rest included. Arrays of `memory` are replaced."""
        return gradient

    def encode(self, values: np.ndarray) -> np.ndarray:
        """values: finite, perhaps none."""
        raise NotImplementedError

    def decode(self, code: np.ndarray, count: int) -> np.ndarray:
        raise NotImplementedError

    def summed(self, total: np.ndarray) -> np.ndarray:
        """What is sent back where `total` is the ranks' sum or average."""
        return total

    def takes(self, shape: tuple[int, ...]) -> bool:
        return 0 not in shape

    def check_use(self, averages: bool, grouped: bool) -> None:
        if grouped:
            raise ValueError(
                f"{self.factory} sums each parameter in two steps: it needs groups=None"
            )


@dataclass
class Call:
    """One gradient of one parameter, of `elements` elements.

    ops: torch_ops or tensorflow_ops, whose functions are alike. Numbers are float in the one and
    float64 scalars in the other, the ratio among them.
    seed: of the parameter's name, the same on all ranks. step: of the parameter, from 0.
    memory: what the rule keeps, by name; assignment replaces it.
    """

    ops: Any
    elements: int
    ratio: Any
    seed: int
    step: Any
    memory: Any

    @property
    def count(self) -> Any:
        """How many elements the ratio keeps, a number: the nearest, but at least one."""
        ops = self.ops
        return ops.minimum(
            self.elements, ops.maximum(1.0, ops.floor(self.ratio * self.elements + 0.5))
        )


class ElementRule(Rule):
    """Sends single elements, or others in their place.

    A gradient with a NaN or an infinity, of which no statistics can be made, is sent whole.
    """

    learns: ClassVar[bool] = False  # from what was sent: learn() is to be called

    def sent(self, total: Any, call: Call) -> Any:
        """What is sent of `total`, flat and float32 or float64: a new tensor like it."""
        raise NotImplementedError

    def scale(self, call: Call) -> Any:
        """What is sent times this is right on average, where no rest is kept."""
        return 1.0

    def learn(self, kept: Any, call: Call) -> None:
        """`kept`: how many elements of what was sent are not zero, a number."""


class ThresholdRule(ElementRule):
    """Sends the elements whose absolute value exceeds limit()."""

    def limit(self, total: Any, call: Call) -> Any:
        """A number; if it is not finite, all is sent."""
        raise NotImplementedError

    def sent(self, total: Any, call: Call) -> Any:
        return call.ops.above(total, self.limit(total, call))


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
