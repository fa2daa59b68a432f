"""Sums of codes that cannot be added: each rank owns an equal part of a tensor.

    encode all parts | all to all | decode one's own part, add, encode | gather | decode

So 2 (N-1)/N codes of a tensor travel by each of N ranks, as in a ring; GRACE gathers all ranks'
codes everywhere, which are N-1. Both sides may keep what their encoding loses for the next step, as
in Seide et al., "1-Bit Stochastic Gradient Descent" (Interspeech 2014). Codes are NumPy arrays in
all frameworks; Horovod carries them (two_steps.py).

A code on its way: its length in bytes, as a little-endian int64, and the code. A part with a NaN or
an infinity travels as float32, and its length is told as -1 - length.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from omnihvd.compression import counters
from omnihvd.compression.arrays import np
from omnihvd.compression.rules import CodedRule
from omnihvd.compression.split import split_by

SUM_REST = "sum_rest"  # in a memory: what this rank's part of sums has lost
SUM_OF = "sum_of"  # the rank that has that part, and the number of ranks
LENGTH = 8  # bytes


class Contribution(NamedTuple):
    code: np.ndarray  # of all parts
    splits: np.ndarray  # int32: its bytes for each rank
    values: np.ndarray  # what the ranks will decode


def part_of(count: int, rank: int, ranks: int) -> slice:
    return slice(count * rank // ranks, count * (rank + 1) // ranks)


def lost_of_part(ops: Any, memory: dict[str, Any], ranks: Any) -> Any:
    """The loss of earlier sums of this rank's part. None: there is none, or it is of the part that
    the rank had before an elastic job gave it another number."""
    of = memory.get(SUM_OF)
    known = of is not None and tuple(ops.numpy(of)) == (ranks.rank, ranks.size)
    return memory.get(SUM_REST) if known else None


def contribution(rule: CodedRule, values: np.ndarray, ranks: int) -> Contribution:
    parts = [values[part_of(len(values), rank, ranks)] for rank in range(ranks)]
    codes = [_packed(rule, part) for part in parts]
    splits = np.array([len(code) for code in codes], np.int32)
    code = np.concatenate(codes)
    sizes = [len(part) for part in parts]
    return Contribution(code, splits, np.concatenate(list(_unpacked(rule, code, sizes))))


def summed(
    rule: CodedRule, codes: np.ndarray, size: int, scale: float, rest: np.ndarray | None
) -> np.ndarray:
    """The code of one's own part, of `size` elements, of all ranks' codes of it, one behind the
    other. The sum is multiplied by `scale`. rest: what the sums before have lost; updated."""
    total = np.zeros(size, np.float32)
    at = 0
    while at < len(codes):
        (part,) = _unpacked(rule, codes[at:], [size])
        at += _bytes_at(codes, at)
        total += part
    total = rule.summed(total * np.float32(scale))
    if rest is None:
        return _packed(rule, total)
    total = total + rest
    code = _packed(rule, total)
    (sent,) = _unpacked(rule, code, [size])
    with np.errstate(invalid="ignore"):
        rest[:] = np.nan_to_num(total - sent, nan=0.0, posinf=0.0, neginf=0.0)
    return code


def opened(rule: CodedRule, codes: np.ndarray, count: int, ranks: int) -> np.ndarray:
    """The result, of all ranks' summed()."""
    parts = [part_of(count, rank, ranks) for rank in range(ranks)]
    sizes = [part.stop - part.start for part in parts]
    return np.concatenate(list(_unpacked(rule, codes, sizes)))


class PartSum:
    """One parameter's sum, as two_steps.TwoSteps."""

    exchanges = (("alltoall", "parts"), ("allgather", "sum"))

    def __init__(self, rule: CodedRule, ops: Any, compressor: Any, state: Any, ranks: Any) -> None:
        self._rule, self._ops, self._compressor = rule, ops, compressor
        self._state, self._ranks = state, ranks
        self._feedback = compressor.config.error_feedback

    def first(self, gradient: Any) -> tuple[np.ndarray, np.ndarray]:
        ops, state, self._count = self._ops, self._state, math.prod(gradient.shape)
        if self._compressor.config.codec:
            made, known = self._of_some(gradient)
        else:
            made, known = self._of_all(gradient)
        if self._feedback:
            lost = ops.on(made.values - known, gradient)
            ops.subtract(state.begin(ops, gradient, 0.0).reshape(-1), lost)
        return made.code, made.splits

    def _of_all(self, gradient: Any) -> tuple[Contribution, Any]:
        """Encodes all of the residual and the gradient."""
        ops, state = self._ops, self._state
        with counters.timed(self._count):
            memory = state.remember(ops, self._rule, gradient)
            total = state.accumulate(ops, gradient) if self._feedback else gradient
            kept = {kind: ops.numpy(array) for kind, array in memory.items()}
            values = self._rule.values(_flat(ops, total), kept)
            state.memory = {kind: ops.on(array, gradient) for kind, array in kept.items()}
            made = contribution(self._rule, values, self._ranks.size)
            counters.add_kept(ops.device(gradient), made.code.nbytes // 4)
        state.step += 1
        return made, 0

    def _of_some(self, gradient: Any) -> tuple[Contribution, Any]:
        """Encodes the elements that the compressor's own rule sends, which the residual has lost;
        their positions are exact."""
        copy = self._ops.cast(gradient * 1, gradient)
        sent = split_by(self._ops, self._compressor, copy, self._state, self._ranks.size)
        values = _flat(self._ops, sent)
        return contribution(self._rule, values, self._ranks.size), values

    def second(self, codes: np.ndarray) -> np.ndarray:
        ops, memory = self._ops, self._state.memory
        part = part_of(self._count, self._ranks.rank, self._ranks.size)
        size, rest = part.stop - part.start, None
        if self._feedback:
            kept = lost_of_part(ops, memory, self._ranks)
            rest = np.zeros(size, np.float32) if kept is None else ops.numpy(kept)
        scale = 1 / self._ranks.size if self._ranks.averages else 1.0
        code = summed(self._rule, codes, size, scale, rest)
        if rest is not None:
            memory[SUM_REST] = ops.on(rest, self._state.rest)
            mine = np.array([self._ranks.rank, self._ranks.size])
            memory[SUM_OF] = ops.on(mine, self._state.rest)
        return code

    def result(self, codes: np.ndarray) -> np.ndarray:
        return opened(self._rule, codes, self._count, self._ranks.size)


def _flat(ops: Any, array: Any) -> np.ndarray:
    return np.asarray(ops.numpy(ops.wide(array).reshape(-1)), np.float32)


def _packed(rule: CodedRule, values: np.ndarray) -> np.ndarray:
    finite = bool(np.isfinite(values).all())
    code = rule.encode(values) if finite else values.astype("<f4").view(np.uint8)
    length = np.array([len(code) if finite else -1 - len(code)], "<i8")
    return np.concatenate([length.view(np.uint8), code])


def _unpacked(rule: CodedRule, codes: np.ndarray, sizes: list[int]) -> Iterator[np.ndarray]:
    """The values of codes one behind the other, of so many elements each."""
    at = 0
    for size in sizes:
        end = at + _bytes_at(codes, at)
        code = codes[at + LENGTH : end]
        yield code.copy().view("<f4") if _length(codes, at) < 0 else rule.decode(code, size)
        at = end


def _bytes_at(codes: np.ndarray, at: int) -> int:
    length = _length(codes, at)
    return LENGTH + (length if length >= 0 else -1 - length)


def _length(codes: np.ndarray, at: int) -> int:
    return int(codes[at : at + LENGTH].copy().view("<i8")[0])
