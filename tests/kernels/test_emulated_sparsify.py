"""The kernels of sparsify.cu, emulated, against NumPy: the same bits."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from kernel_emulation import FEW, Memory

FORMATS = {"float32": 0, "float16": 0, "bfloat16": 1}
MODULES = [("float32", 32), ("float32", 256), ("float32", 1024), ("float16", 32), ("bfloat16", 256)]
INFINITY = np.float32(np.inf)


# --- choose -------------------------------------------------------------------------------------


def choose(module, norms: np.ndarray, count: int, seed: int = 0, misaligned: int = 0) -> np.ndarray:
    held, keep = Memory(norms.nbytes, 4 * misaligned), Memory(len(norms))
    held.bytes[:] = norms.view(np.uint8)
    module.run("choose", held.address, len(norms), count, keep.address, 1, seed)
    keep.check()
    return keep.bytes


def first_largest(norms: np.ndarray, count: int) -> np.ndarray:
    keep = np.zeros(len(norms), np.uint8)
    ranked = np.where(np.isfinite(norms), norms, INFINITY)
    keep[np.argsort(-ranked, kind="stable")[:count]] = 1
    return keep


def norms_of(kind: str, count: int) -> np.ndarray:
    random = np.random.default_rng(count)
    if kind == "ties":
        return random.integers(0, 4, count).astype(np.float32)
    if kind == "zeros":
        return np.zeros(count, np.float32)
    norms = np.ldexp(random.random(count), random.integers(-160, 100, count)).astype(np.float32)
    if kind == "infinite":
        norms[random.random(count) < 0.3] = np.inf
        norms[random.random(count) < 0.3] = np.nan
    return norms


@pytest.mark.parametrize("kind", ["spread", "ties", "zeros", "infinite"])
@pytest.mark.parametrize("blocks", [1, 2, 31, 33, 4095, 4096, 4097, 9001])
def test_exactly_so_many_of_equal_ones_the_first(sparsify_kernels, kind, blocks):
    module, norms = sparsify_kernels("float32", 32), norms_of(kind, blocks)
    for seed, count in enumerate(sorted({1, (blocks + 1) // 2, blocks})):
        keep = choose(module, norms, count, seed, misaligned=blocks % 4)
        assert keep.sum() == count
        assert np.array_equal(keep, first_largest(norms, count))


# --- accumulate and split -----------------------------------------------------------------------


def stored(values: np.ndarray, dtype: str) -> np.ndarray:
    """Float32 as the gradient's dtype has it."""
    if dtype == "float32":
        return values
    if dtype == "float16":
        return values.astype(np.float16)
    bits = values.view(np.uint32)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(values), 0x7FC0, rounded).astype(np.uint16)


def loaded(held: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "bfloat16":
        return (held.astype(np.uint32) << 16).view(np.float32)
    return held.astype(np.float32)


def placed(values: np.ndarray | None, misaligned: int) -> Memory | None:
    if values is None:
        return None
    memory = Memory(values.nbytes, misaligned * values.itemsize)
    memory.bytes[:] = values.view(np.uint8)
    return memory


@dataclass
class Step:
    """One gradient, and what is kept, as the kernels' arguments."""

    dtype: str
    block_size: int
    gradient: np.ndarray  # stored
    rest: np.ndarray | None = None
    velocity: np.ndarray | None = None
    momentum: float = 0.0
    scale: float = 1.0
    least: float = np.inf
    keep: np.ndarray | None = None
    norms: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))
    kept: int = 0

    def run(self, module, misaligned: int = 0, ctas: int = 2, seed: int = 0) -> Step:
        """The kernels' outcome."""
        gradient, rest = placed(self.gradient, misaligned), placed(self.rest, misaligned)
        velocity, keep = placed(self.velocity, 0), placed(self.keep, 3)
        blocks = -(-len(self.gradient) // self.block_size)
        norms, kept = Memory(4 * blocks, 4), Memory(8)
        kept.bytes[:] = np.array([5], np.uint64).view(np.uint8)
        tensor = gradient.address, len(self.gradient), FORMATS[self.dtype]
        tensor += tuple(memory.address if memory else 0 for memory in (rest, velocity))
        module.run("accumulate", *tensor, self.momentum, norms.address, ctas, seed)
        rule = norms.address, self.least, keep.address if keep else None, kept.address
        module.run("split", *tensor, self.scale, *rule, ctas, seed + 1)
        for memory in (gradient, rest, velocity, keep, norms, kept):
            if memory:
                memory.check()
        after = Step(self.dtype, self.block_size, gradient.bytes.view(self.gradient.dtype))
        after.rest = rest and rest.bytes.view(np.float32)
        after.velocity = velocity and velocity.bytes.view(np.float32)
        after.norms = norms.bytes.view(np.float32)
        after.kept = int(kept.bytes.view(np.uint64)[0]) - 5
        return after

    def expected(self) -> Step:
        """The same by NumPy; the norms in float64."""
        starts = np.arange(0, len(self.gradient), self.block_size)
        total = loaded(self.gradient, self.dtype)
        velocity, after = self.velocity, Step(self.dtype, self.block_size, self.gradient)
        if velocity is not None:
            total = velocity = np.float32(self.momentum) * velocity + total
        if self.rest is not None:
            total = self.rest + total
        after.norms = np.sqrt(np.add.reduceat(total.astype(np.float64) ** 2, starts))
        sends = ~(after.norms < self.least)
        if self.keep is not None:
            sends |= self.keep != 0
        sends = np.repeat(sends, self.block_size)[: len(total)]
        sent = stored(np.where(sends, total * np.float32(self.scale), np.float32(0)), self.dtype)
        after.gradient, after.kept = sent, int(sends.sum())
        left = total - loaded(sent, self.dtype)
        after.rest = None if self.rest is None else np.where(np.isfinite(left), left, np.float32(0))
        after.velocity = None if velocity is None else np.where(sends, np.float32(0), velocity)
        return after


def same(one: np.ndarray | None, other: np.ndarray | None) -> bool:
    """The same bits, or NaN on both sides."""
    if one is None or other is None:
        return one is other
    bits = np.dtype(f"u{one.itemsize}")
    equal = one.view(bits) == other.view(bits)
    if one.dtype.kind == "f":
        equal |= np.isnan(one) & np.isnan(other)
    return bool(equal.all())


def check(module, step: Step, **how: int) -> None:
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        expected = step.expected()
    after = step.run(module, **how)
    for name in ("gradient", "rest", "velocity"):
        assert same(getattr(after, name), getattr(expected, name)), name
    assert after.kept == expected.kept
    finite = expected.norms < 1e18  # their squares do not overflow
    np.testing.assert_allclose(after.norms[finite], expected.norms[finite], 3e-6, 1e-20)
    assert not (after.norms[~finite] < 1e18).any()


def values_of(elements: int, block_size: int, seed: int) -> np.ndarray:
    """Blocks of very different sizes, with zeros of both signs."""
    random = np.random.default_rng(seed)
    values = random.standard_normal(elements)
    values *= np.repeat(10.0 ** random.integers(-8, 4, -(-elements // block_size)), block_size)[
        :elements
    ]
    values[random.random(elements) < 0.2] = 0.0
    values[random.random(elements) < 0.1] *= -1e-30
    return values.astype(np.float32)


def step_of(dtype: str, block_size: int, elements: int, seed: int, parts: str) -> Step:
    """parts: which of rest and velocity there are, and whether `keep` says what is sent."""
    blocks = -(-elements // block_size)
    step = Step(dtype, block_size, stored(values_of(elements, block_size, seed), dtype), least=0.3)
    if "rest" in parts:
        step.rest = values_of(elements, block_size, seed + 1)
    if "velocity" in parts:
        step.velocity, step.momentum = values_of(elements, block_size, seed + 2), 0.9
    if "keep" in parts:
        step.keep = (np.random.default_rng(seed).random(blocks) < 0.4).astype(np.uint8)
        step.least = np.inf
    if "rest" not in parts:
        step.scale = 2.7
    return step


@pytest.mark.parametrize("dtype, block_size", MODULES)
@pytest.mark.parametrize("parts", ["", "keep", "rest", "rest keep", "rest velocity"])
def test_error_feedback(sparsify_kernels, dtype, block_size, parts):
    module = sparsify_kernels(dtype, block_size)
    sizes = [1, 3, 31, block_size - 1, block_size, block_size + 1, 7 * block_size + 5]
    for seed, elements in enumerate(sizes):
        step = step_of(dtype, block_size, elements, 3 * seed, parts)
        check(module, step, misaligned=seed % 5, ctas=1 + seed % 3, seed=seed)


@pytest.mark.parametrize("dtype, block_size", MODULES)
@pytest.mark.parametrize("feedback", [False, True])
def test_what_is_not_finite_is_sent_and_leaves_nothing(
    sparsify_kernels, dtype, block_size, feedback
):
    step = step_of(dtype, block_size, 9 * block_size + 3, 1, "rest" if feedback else "")
    step.least = np.inf
    bad = np.array([0, 2 * block_size + 1, 4 * block_size - 1, 9 * block_size + 2])
    values = np.ones(len(step.gradient), np.float32)
    values[bad] = [np.nan, np.inf, -np.inf, np.nan]
    step.gradient = stored(values, dtype)
    check(sparsify_kernels(dtype, block_size), step)
    after = step.run(sparsify_kernels(dtype, block_size))
    assert after.kept == 3 * block_size + 3
    assert same(loaded(after.gradient, dtype)[bad], values[bad])
    assert after.rest is None or np.isfinite(after.rest).all()


def test_what_a_half_cannot_hold_is_infinite_and_forgotten(sparsify_kernels):
    largest, rest = np.full(32, 65504, np.float16), np.full(32, 100, np.float32)
    step = Step("float16", 32, largest, rest, least=0)
    check(sparsify_kernels("float16", 32), step)
    assert not step.run(sparsify_kernels("float16", 32)).rest.any()


@pytest.mark.parametrize("dtype, block_size", MODULES)
def test_norms_of_integers_are_exact(sparsify_kernels, dtype, block_size):
    """Whatever the order in which their squares are added."""
    values = np.random.default_rng(0).integers(-9, 9, 5 * block_size - 7).astype(np.float32)
    step = Step(dtype, block_size, stored(values, dtype), np.zeros_like(values))
    norms = step.run(sparsify_kernels(dtype, block_size)).norms
    assert np.array_equal(norms, step.expected().norms.astype(np.float32))


@pytest.mark.parametrize("seed", range(6))
def test_schedules(sparsify_kernels, seed):
    """Seeds choose which lanes, warps and CTAs run ahead of the others."""
    step = step_of("float32", 32, 60 * 32 + 1, 4, "rest velocity")
    check(sparsify_kernels("float32", 32), step, ctas=4, seed=seed)
    norms = norms_of("ties", 5000)
    assert np.array_equal(
        choose(sparsify_kernels("float32", 32), norms, 1234, seed), first_largest(norms, 1234)
    )


# --- above --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("parts", ["", "rest", "rest velocity"])
def test_single_elements_in_one_pass(sparsify_kernels, dtype, parts):
    module = sparsify_kernels(dtype, 256 if dtype == "bfloat16" else 32)
    cases = [(513, 0.3), (1, 0), (3, 0.1), (3001, 5), (2000, 0)]
    for seed, (elements, limit) in list(enumerate(cases))[FEW]:
        step = step_of(dtype, 32, elements, 3 * seed, parts)
        values = loaded(step.gradient, dtype).copy()
        values[elements // 2 :: 100] = [np.nan, np.inf, -np.inf][seed % 3]
        step.gradient = stored(values, dtype)
        held = [placed(array, seed) for array in (step.gradient, step.rest, step.velocity)]
        kept = placed(np.array([5], np.uint64), 0)
        addresses = [memory.address if memory else 0 for memory in held]
        module.run(
            "above", addresses[0], elements, FORMATS[dtype], *addresses[1:], step.momentum, limit,
            kept.address, 1 + seed % 3, seed,
        )  # fmt: skip
        with np.errstate(invalid="ignore", over="ignore"):
            total, velocity = values, step.velocity
            if velocity is not None:
                total = velocity = np.float32(step.momentum) * velocity + total
            if step.rest is not None:
                total = step.rest + total
            sent = stored(np.where(np.abs(total) <= limit, np.float32(0), total), dtype)
            left = total - loaded(sent, dtype)
        rest = None if step.rest is None else np.where(np.isfinite(left), left, np.float32(0))
        went = loaded(sent, dtype) != 0
        velocity = None if velocity is None else np.where(went, np.float32(0), velocity)
        for memory, expected in zip(held, (sent, rest, velocity)):
            if memory:
                memory.check()
                assert same(memory.bytes.view(expected.dtype), expected)
        assert kept.bytes.view(np.uint64)[0] == 5 + went.sum()
