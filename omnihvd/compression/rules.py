"""Rules choose the part of a gradient to send: their common base, and the rules for whole blocks.

Block rules follow the block gradient sparsifiers of OmniReduce (SIGCOMM 2021): their unit is the
block that the engine skips when it is zero. Rules for elements are in methods/, one a module. The
functions work on flat arrays of PyTorch and of NumPy, by `call.ops`, and choose alike in both.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from typing import Any, ClassVar

from omnihvd.compression.arrays import np


@dataclass(frozen=True)
class Rule:
    """A dataclass with the arguments of `factory`, in omnihvd.compression, as its fields.

    A rule with a `ratio` can be warmed up.
    """

    factory: ClassVar[str]
    selects: ClassVar[bool] = False  # sends a `ratio` of the gradient's own values
    adjustable: ClassVar[bool] = False  # ranks may send different shares of their gradients
    momentum: ClassVar[float] = 0.0  # by default
    error_feedback: ClassVar[bool | None] = True  # by default; None: it keeps nothing to send later
    # For a rule that does not send a part of each gradient: the modules that make its sums
    # (torch_..., tensorflow_...); or that it sends replacement().
    sums: ClassVar[str] = ""
    replaces: ClassVar[bool] = False

    def memory(self, name: str, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
        """A parameter's initial state besides the residual."""
        return {}

    def together(self) -> Any:
        """A compressor's initial state of all parameters together."""

    def replacement(
        self, gradient: Any, name: str, memory: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Returns the tensor to send, like the gradient, and the rule's new state. memory: the
        state before (None: leave it as it is)."""
        raise NotImplementedError

    def takes(self, shape: tuple[int, ...]) -> bool:
        """Whether `sums` makes the sums of a parameter of this shape; else it is sent whole."""
        return 0 not in shape

    def check_use(self, averages: bool, grouped: bool) -> None:
        """ValueError where the rule does not support that op, or groups, of Horovod's optimizer."""
        if grouped and self.sums == "two_steps":
            raise ValueError(
                f"{self.factory} sums each parameter in two steps: it needs groups=None"
            )

    def scale(self, call: Call) -> float:
        """The factor that makes the sent part unbiased, where no residual is kept."""
        return 1.0

    def received(self, gradient: Any, ranks: int) -> Any:
        """The gradient for the optimizer, from the ranks' sum or average."""
        return gradient

    @property
    def has_second_step(self) -> bool:
        """Whether the rule needs more than one sum: DDP's hooks make only one."""
        return bool(self.sums) or type(self).received is not Rule.received

    def arguments(self) -> list[tuple[str, str]]:
        """The factory's arguments, as texts."""
        return [(name, repr(value)) for name, value in vars(self).items()]


@dataclass
class Call:
    """One gradient of one parameter, of `parts` elements or, for block rules, blocks.

    ops: the arrays' functions, numpy_ops or torch_ops, which have the same.
    seed: from the parameter's name, the same on all ranks. step: the parameter's, from 0.
    memory: the rule's state, arrays by name, which it may change. together: its state of all
    parameters.
    """

    ops: Any
    parts: int
    ratio: float
    seed: int
    step: int
    memory: dict[str, Any]
    together: Any = None

    @property
    def count(self) -> int:
        """How many parts the ratio keeps."""
        return kept_count(self.ratio, self.parts)

    def random(self, *seeds: int) -> np.random.Generator:
        """The same generator on all ranks, in all frameworks."""
        return np.random.default_rng(seeds)


@dataclass(frozen=True)
class BlockRule(Rule):
    """Sends whole blocks. A block with a NaN or an infinity is always sent."""

    def keep(self, norms: Any, call: Call) -> Any:
        """Which blocks to send, a bool each. norms: their L2 norms."""
        raise NotImplementedError


@dataclass(frozen=True)
class TopBlocks(BlockRule):
    """The `ratio` of a parameter's blocks with the largest L2 norm; the first of equal ones."""

    factory = "block_topk"
    adjustable = True
    selects = True
    ratio: float

    def keep(self, norms: Any, call: Call) -> Any:
        ops, count = call.ops, call.count
        infinite = ~ops.isfinite(norms)
        ranked = ops.where(infinite, math.inf, norms)  # in place of NaN
        least = ops.kth_largest(ranked, count)
        above, equal = ranked > least, ranked == least
        return infinite | above | (equal & (equal.cumsum(0) <= count - above.sum()))


@dataclass(frozen=True)
class RandomBlocks(BlockRule):
    """A random `ratio` of a parameter's blocks, the same on all ranks.

    Blocks take turns: each is drawn with the same chance, but none waits long for its next turn.
    Long waits are what hurts under error feedback.
    """

    factory = "block_random"
    selects = True
    ratio: float
    seed: int

    def keep(self, norms: Any, call: Call) -> Any:
        return ~call.ops.isfinite(norms) | call.ops.mask(self.drawn(call), call.parts, norms)

    def drawn(self, call: Call) -> np.ndarray:
        """The numbers of this step's blocks."""
        shuffle, start = random_turn(call.step, call.count, call.parts)
        order = call.random(self.seed, call.seed, shuffle).permutation(call.parts)
        return order[start : start + call.count]

    def scale(self, call: Call) -> float:
        return call.parts / call.count


@dataclass(frozen=True)
class ThresholdBlocks(BlockRule):
    """The blocks with an L2 norm of at least `threshold`."""

    factory = "block_threshold"
    adjustable = True
    threshold: float

    def keep(self, norms: Any, call: Call) -> Any:
        return ~(norms < self.threshold)  # so written, a NaN is kept


class CodedRule(Rule):
    """Sends codes. They cannot be added: part_sums.py decodes them first. Flat float32 in, flat
    uint8 out."""

    sums = "two_steps"

    def values(self, gradient: np.ndarray, memory: dict[str, np.ndarray]) -> np.ndarray:
        """The values to encode, residual included. Replaces arrays of `memory`."""
        return gradient

    def encode(self, values: np.ndarray) -> np.ndarray:
        """Returns the code. values: finite, perhaps empty."""
        raise NotImplementedError

    def decode(self, code: np.ndarray, count: int) -> np.ndarray:
        raise NotImplementedError

    def summed(self, total: np.ndarray) -> np.ndarray:
        """The values to send back. total: the ranks' sum or average."""
        return total


class ElementRule(Rule):
    """Sends single elements, or others in their place.

    A gradient with a NaN or an infinity is sent whole: it has no meaningful statistics.
    """

    learns: ClassVar[bool] = False  # calls learn() after each step

    def sent(self, total: Any, call: Call) -> Any:
        """The part of `total` to send, as a new tensor like it. total: flat, float32 or float64."""
        raise NotImplementedError

    def learn(self, kept: float, call: Call) -> None:
        """Learns from a step. kept: how many of the sent elements are not zero."""


class ThresholdRule(ElementRule):
    """Sends the elements with absolute values above limit()."""

    def limit(self, total: Any, call: Call) -> float:
        """The threshold; if it is not finite, all elements are sent."""
        raise NotImplementedError


@dataclass(frozen=True)
class WarmUp:
    """The ratio falls exponentially from `start` over `epochs` (Lin et al., ICLR 2018, 3.3)."""

    epochs: float
    start: float
    steps_per_epoch: int | None

    def ratio(self, final: float, epoch: float) -> float:
        return self.start * (final / self.start) ** min(1.0, max(0.0, epoch / self.epochs))


def kept_count(ratio: float, parts: int) -> int:
    """How many of `parts` a ratio keeps: the nearest number, but at least one."""
    return min(parts, max(1, int(ratio * parts + 0.5)))


def random_turn(step: int, count: int, blocks: int) -> tuple[int, int]:
    """Which shuffle of the blocks `step` draws from, and the first of the `count` that it takes.

    A shuffle lasts until all its blocks have had their turn. Where `count` does not divide
    `blocks`, the last turn takes some blocks a second time.
    """
    shuffle, turn = divmod(step, -(-blocks // count))
    return shuffle, min(turn * count, blocks - count)


def name_seed(name: str) -> int:
    """A number that is the same for a parameter's name in every process."""
    return zlib.crc32(name.encode())
