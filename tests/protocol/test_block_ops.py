"""The block operations against NumPy: every implementation that this CPU has, for every dtype.

Tensors are handled as the bits of their elements, so that NaN, subnormals and -0.0 can be told
apart. Every buffer that an operation sees lies between guard bytes, with an inaccessible page
behind them: writes outside change a guard, reads and writes past the page boundary end the process.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from _engine_tests import protocol
from hypothesis import given, settings
from hypothesis import strategies as st

GUARD = 0xA5


class Fenced:
    """Memory up to an inaccessible page. Hands out one piece at a time."""

    def __init__(self, capacity: int = 1 << 16) -> None:
        page = mmap.PAGESIZE
        self._map = mmap.mmap(-1, capacity + page, flags=mmap.MAP_PRIVATE)
        self._bytes = np.frombuffer(self._map, np.uint8)[:capacity]
        address = self._bytes.ctypes.data + capacity
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(page), 0) != 0:
            raise OSError(ctypes.get_errno(), "mprotect")
        self._taken = slice(0, 0)

    def take(self, size: int, gap: int) -> np.ndarray:
        """`size` bytes that end `gap` bytes before the inaccessible page."""
        end = len(self._bytes) - gap
        self._taken = slice(end - size, end)
        self._bytes[:] = GUARD
        return self._bytes[self._taken]

    def holding(self, data: np.ndarray, gap: int) -> np.ndarray:
        taken = self.take(data.nbytes, gap)
        taken[:] = data.view(np.uint8)
        return taken

    def intact(self) -> bool:
        """Whether nothing was written outside the piece handed out."""
        before, after = self._bytes[: self._taken.start], self._bytes[self._taken.stop :]
        return bool((before == GUARD).all() and (after == GUARD).all())


INPUT, OUTPUT, SUMS = Fenced(), Fenced(), Fenced()


@dataclass(frozen=True)
class Dtype:
    """How NumPy sees a dtype: `bits` are its elements as unsigned integers."""

    name: str
    bits: type
    number: type | None  # NumPy's type for it; None: NumPy has none (bfloat16)
    sum: type

    @property
    def size(self) -> int:
        return np.dtype(self.bits).itemsize

    @property
    def floating(self) -> bool:
        return self.number is None or issubclass(self.number, np.floating)

    @property
    def sign(self) -> int:
        return 1 << (8 * self.size - 1)

    def specials(self) -> np.ndarray:
        if not self.floating:
            return np.array([1, self.sign - 1, self.sign, 2 * self.sign - 1], self.bits)
        fraction = {"float16": 10, "bfloat16": 7, "float32": 23, "float64": 52}[self.name]
        infinity = self.sign - (1 << fraction)
        quiet_nan = infinity | 1 << (fraction - 1)
        one = (infinity >> 1) & infinity
        magnitudes = [1, 1 << fraction, one, infinity - 1, infinity, infinity + 1, quiet_nan | 1]
        return np.array(magnitudes + [self.sign | m for m in magnitudes], self.bits)

    def widen(self, bits: np.ndarray) -> np.ndarray:
        """The accumulators' values of elements."""
        if self.number is None:
            return (bits.astype(np.uint32) << 16).view(np.float32)
        return bits.view(self.number).astype(self.sum)

    def nonzero(self, bits: np.ndarray) -> np.ndarray:
        return self.widen(bits) != 0


DTYPES = [
    Dtype("float16", np.uint16, np.float16, np.float32),
    Dtype("bfloat16", np.uint16, None, np.float32),
    Dtype("float32", np.uint32, np.float32, np.float32),
    Dtype("float64", np.uint64, np.float64, np.float64),
    Dtype("int8", np.uint8, np.int8, np.int8),
    Dtype("uint8", np.uint8, np.uint8, np.uint8),
    Dtype("int32", np.uint32, np.int32, np.int32),
    Dtype("int64", np.uint64, np.int64, np.int64),
]
HALVES = [dtype for dtype in DTYPES if dtype.sum is np.float32 and dtype.size == 2]

every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
every_half = pytest.mark.parametrize("dtype", HALVES, ids=lambda d: d.name)
every_implementation = pytest.mark.parametrize("name", protocol.block_ops_implementations())
thorough = settings(max_examples=40, deadline=None)


@dataclass(frozen=True)
class Case:
    """A tensor to be, and where buffers end before the inaccessible page."""

    n: int
    seed: int
    density: float
    negative_zeros: float
    values: str
    gaps: tuple[int, int, int]

    def tensor(self, dtype: Dtype, salt: int = 0) -> np.ndarray:
        draw = np.random.default_rng((self.seed, salt))
        if self.values == "any":  # any bits, as wide exponents as there are
            bits = draw.integers(0, 2 * dtype.sign, self.n, dtype.bits, endpoint=False)
        elif self.values == "special":
            bits = draw.choice(dtype.specials(), self.n)
        else:  # few bits set: neighbours in memory order
            bits = draw.integers(1, 4, self.n, dtype.bits)
        zero = draw.random(self.n) >= self.density
        negative = draw.random(self.n) < self.negative_zeros
        bits[zero] = 0
        if dtype.floating:
            bits[zero & negative] = dtype.sign
        return bits


cases = st.builds(
    Case,
    n=st.integers(0, 1100) | st.integers(0, 140) | st.just(5003),
    seed=st.integers(0, 2**32 - 1),
    density=st.sampled_from([0, 0.002, 0.05, 0.5, 0.97, 1]),
    negative_zeros=st.sampled_from([0, 0.01, 1]),
    values=st.sampled_from(["any", "special", "small"]),
    gaps=st.tuples(*[st.just(0) | st.integers(0, 130)] * 3),
)


def packed_form(dtype: Dtype, bits: np.ndarray) -> np.ndarray:
    mask = dtype.nonzero(bits)
    return np.concatenate([np.packbits(mask, bitorder="little"), bits[mask].view(np.uint8)])


def assert_same_numbers(got: np.ndarray, expected: np.ndarray) -> None:
    """Equal bit by bit, but any NaN is like any other."""
    assert got.dtype == expected.dtype
    if not issubclass(got.dtype.type, np.floating):
        np.testing.assert_array_equal(got, expected)
        return
    nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(got), nan)
    unsigned = np.dtype(f"u{got.itemsize}")
    np.testing.assert_array_equal(got.view(unsigned)[~nan], expected.view(unsigned)[~nan])


@every_dtype
@every_implementation
@thorough
@given(case=cases)
def test_inspect_and_count(name: str, dtype: Dtype, case: Case) -> None:
    ops = protocol.BlockOps(dtype.name, name)
    bits = case.tensor(dtype)
    tensor = INPUT.holding(bits, case.gaps[0])
    count = int(dtype.nonzero(bits).sum())
    negative_zero = dtype.floating and count == 0 and bool((bits == dtype.sign).any())
    assert ops.inspect(tensor) == (int(count > 0), int(negative_zero))
    assert ops.count_nonzero(tensor) == count


@every_dtype
@every_implementation
def test_inspect_finds_one_element_anywhere(name: str, dtype: Dtype) -> None:
    ops = protocol.BlockOps(dtype.name, name)
    for n in (1, 31, 64, 300):
        for position in range(n):
            bits = np.zeros(n, dtype.bits)
            bits[position] = 1
            assert ops.inspect(bits) == (1, 0), position
            bits[position] = dtype.sign
            assert ops.inspect(bits) == ((0, 1) if dtype.floating else (1, 0)), position


@every_dtype
@every_implementation
@thorough
@given(case=cases)
def test_pack_writes_the_packed_form_and_no_more(name: str, dtype: Dtype, case: Case) -> None:
    ops = protocol.BlockOps(dtype.name, name)
    bits = case.tensor(dtype)
    expected = packed_form(dtype, bits)
    tensor = INPUT.holding(bits, case.gaps[0])
    # The binding asks for room for all elements; what lies past the packed form is guard too.
    out = OUTPUT.take((case.n + 7) // 8 + bits.nbytes, case.gaps[1])
    written = ops.pack(tensor, out)
    assert written == len(expected)
    np.testing.assert_array_equal(out[:written], expected)
    assert (out[written:] == GUARD).all()
    assert OUTPUT.intact()
    assert protocol.packed_count(out, case.n) == dtype.nonzero(bits).sum()


@every_dtype
@every_implementation
@thorough
@given(case=cases)
def test_unpack(name: str, dtype: Dtype, case: Case) -> None:
    ops = protocol.BlockOps(dtype.name, name)
    bits = case.tensor(dtype)
    packed = INPUT.holding(packed_form(dtype, bits), case.gaps[0])
    for unpack in (ops.unpack, ops.unlist):
        out = OUTPUT.take(bits.nbytes, case.gaps[1])
        unpack(packed, out)
        np.testing.assert_array_equal(
            out, np.where(dtype.nonzero(bits), bits, dtype.bits(0)).view(np.uint8)
        )
        assert OUTPUT.intact()


@every_dtype
@every_implementation
@thorough
@given(case=cases)
def test_store_and_add(name: str, dtype: Dtype, case: Case) -> None:
    ops = protocol.BlockOps(dtype.name, name)
    bits, more = case.tensor(dtype), case.tensor(dtype, salt=1)
    sums = SUMS.take(case.n * np.dtype(dtype.sum).itemsize, case.gaps[2])
    ops.store(sums, INPUT.holding(bits, case.gaps[0]))
    assert_same_numbers(sums.view(dtype.sum), dtype.widen(bits))
    ops.add(sums, INPUT.holding(more, case.gaps[1]))
    with np.errstate(all="ignore"):
        assert_same_numbers(sums.view(dtype.sum), dtype.widen(bits) + dtype.widen(more))
    assert SUMS.intact()


@pytest.mark.parametrize("form", ["packed", "listed"])
@every_dtype
@every_implementation
@thorough
@given(case=cases)
def test_store_and_add_sparse(name: str, dtype: Dtype, case: Case, form: str) -> None:
    ops = protocol.BlockOps(dtype.name, name)
    store, add = getattr(ops, "store_" + form), getattr(ops, "add_" + form)
    bits, more = case.tensor(dtype), case.tensor(dtype, salt=1)
    present = dtype.nonzero(more)
    sums = SUMS.take(case.n * np.dtype(dtype.sum).itemsize, case.gaps[2])

    store(sums, INPUT.holding(packed_form(dtype, bits), case.gaps[0]))
    zeroed = np.where(dtype.nonzero(bits), bits, dtype.bits(0))
    assert_same_numbers(sums.view(dtype.sum), dtype.widen(zeroed))

    # -0.0 and NaN in the accumulator show whether absent elements are really left out.
    ops.store(sums, bits.view(np.uint8))
    before = sums.copy()
    add(sums, INPUT.holding(packed_form(dtype, more), case.gaps[1]))
    with np.errstate(all="ignore"):
        expected = dtype.widen(bits) + dtype.widen(more)
    assert_same_numbers(sums.view(dtype.sum)[present], expected[present])
    width = np.dtype(dtype.sum).itemsize
    absent = (~present).nonzero()[0]
    np.testing.assert_array_equal(
        sums.reshape(-1, width)[absent], before.reshape(-1, width)[absent]
    )
    assert SUMS.intact()


def rounded_to_half(dtype: Dtype, values: np.ndarray) -> np.ndarray:
    """Bits of float32 values rounded to nearest, ties to even."""
    if dtype.number is not None:
        with np.errstate(all="ignore"):
            return values.astype(dtype.number).view(dtype.bits)
    bits = values.view(np.uint32)
    rest, kept = bits & 0xFFFF, bits >> 16
    up = (rest > 0x8000) | ((rest == 0x8000) & (kept % 2 == 1))
    nan = np.isnan(values)
    return np.where(nan, kept | 0x40, kept + up).astype(np.uint16)


@every_dtype
@every_implementation
@thorough
@given(case=cases, in_place=st.booleans())
def test_finish(name: str, dtype: Dtype, case: Case, in_place: bool) -> None:
    ops = protocol.BlockOps(dtype.name, name)
    as_sum = next(d for d in DTYPES if d.number is dtype.sum)
    bits = case.tensor(as_sum)
    sums = SUMS.holding(bits, case.gaps[2])
    out = sums if in_place else OUTPUT.take(case.n * dtype.size, case.gaps[1])
    ops.finish(out, sums)
    result = out[: case.n * dtype.size].view(dtype.bits)
    if dtype in HALVES:
        expected = rounded_to_half(dtype, bits.view(np.float32))
        assert_same_numbers(dtype.widen(result), dtype.widen(expected))
    else:
        np.testing.assert_array_equal(result, bits)
    assert SUMS.intact()
    assert in_place or OUTPUT.intact()


@every_half
@every_implementation
def test_every_half_and_every_tie_between_two(name: str, dtype: Dtype) -> None:
    ops = protocol.BlockOps(dtype.name, name)
    halves = np.arange(1 << 16, dtype=np.uint16)
    wide = np.empty(len(halves), np.float32)
    ops.store(wide, halves)
    assert_same_numbers(wide, dtype.widen(halves))

    number = ~np.isnan(wide)
    back = np.empty_like(halves)
    ops.finish(back, wide)
    np.testing.assert_array_equal(back[number], halves[number])
    nan_sign = (halves[~number] ^ back[~number]) & dtype.sign
    assert np.isnan(dtype.widen(back[~number])).all() and not nan_sign.any()

    # In the middle between a finite half and the next in size, and one float32 to either side.
    finite = np.isfinite(wide)
    here = wide[finite].astype(np.float64)
    next_in_size = dtype.widen(halves[finite] + np.uint16(1)).astype(np.float64)
    first_to_overflow = {"float16": 2.0**16, "bfloat16": 2.0**128}[dtype.name]
    next_in_size = np.clip(next_in_size, -first_to_overflow, first_to_overflow)
    ties = ((here + next_in_size) / 2).astype(np.float32)
    inwards, outwards = np.float32(0), np.copysign(np.float32(np.inf), ties)
    near = np.concatenate([ties, np.nextafter(ties, inwards), np.nextafter(ties, outwards)])
    result = np.empty(len(near), np.uint16)
    ops.finish(result, near)
    np.testing.assert_array_equal(result, rounded_to_half(dtype, near))


@every_half
def test_implementations_convert_nan_alike(dtype: Dtype) -> None:
    """Workers on different CPUs see the same bits."""
    halves = np.arange(1 << 16, dtype=np.uint16)
    draw = np.random.default_rng(3)
    nan = draw.integers(1, 1 << 23, 1 << 16, np.uint32) | np.uint32(0x7F800000)
    nan |= draw.integers(0, 2, 1 << 16, np.uint32) << 31
    widened, narrowed = [], []
    for name in protocol.block_ops_implementations():
        ops = protocol.BlockOps(dtype.name, name)
        widened.append(np.empty(1 << 16, np.uint32))
        narrowed.append(np.empty(1 << 16, np.uint16))
        ops.store(widened[-1], halves)
        ops.finish(narrowed[-1], nan)
    for wide, narrow in zip(widened, narrowed):
        np.testing.assert_array_equal(wide, widened[0])
        np.testing.assert_array_equal(narrow, narrowed[0])


@every_dtype
@every_implementation
@settings(max_examples=30, deadline=None)
@given(case=cases, block_size=st.integers(1, 300))
def test_blocks_of_a_tensor_back_to_back(
    name: str, dtype: Dtype, case: Case, block_size: int
) -> None:
    ops = protocol.BlockOps(dtype.name, name)
    bits = case.tensor(dtype)
    blocks = [bits[i : i + block_size] for i in range(0, case.n, block_size)]
    expected = b"".join(packed_form(dtype, block).tobytes() for block in blocks)
    packed = np.zeros(bits.nbytes + sum((len(block) + 7) // 8 for block in blocks), np.uint8)
    size = ops.pack(bits, packed, block_size)
    assert packed[:size].tobytes() == expected
    assert ops.inspect(bits, block_size)[0] == sum(dtype.nonzero(b).any() for b in blocks)
    back = np.empty_like(bits)
    ops.unpack(packed[:size], back, block_size)
    np.testing.assert_array_equal(back, np.where(dtype.nonzero(bits), bits, dtype.bits(0)))


@every_dtype
@every_implementation
@pytest.mark.parametrize("n", [1, 7, 9, 60, 65, 257])
def test_bits_past_the_end_of_a_bitmap_count_for_nothing(name: str, dtype: Dtype, n: int) -> None:
    """A peer may send anything: no more elements are read than packed_count says."""
    ops = protocol.BlockOps(dtype.name, name)
    bits = np.arange(1, n + 1).astype(dtype.bits) | dtype.bits(1)
    packed = packed_form(dtype, bits)
    packed[(n + 7) // 8 - 1] = 0xFF
    packed = INPUT.holding(packed, 0)
    assert protocol.packed_count(packed, n) == n
    out = OUTPUT.take(bits.nbytes, 0)
    ops.unpack(packed, out)
    np.testing.assert_array_equal(out, bits.view(np.uint8))
    sums = SUMS.take(n * np.dtype(dtype.sum).itemsize, 0)
    ops.store_packed(sums, packed)
    assert_same_numbers(sums.view(dtype.sum), dtype.widen(bits))
    assert OUTPUT.intact() and SUMS.intact()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the others have the portable one only")
def test_the_best_implementation_of_this_cpu_is_used() -> None:
    flags = set(Path("/proc/cpuinfo").read_text().split("flags", 1)[1].split("\n", 1)[0].split())
    avx2 = {"avx2", "f16c", "fma", "bmi1", "bmi2", "popcnt"}
    expected = ["portable"] + ["avx2"] * (avx2 <= flags)
    assert protocol.block_ops_implementations() == expected
    assert protocol.block_ops_implementation() == expected[-1]


def test_mismatches_are_refused() -> None:
    ops = protocol.BlockOps("float32")
    ones = np.ones(16, np.float32)
    packed = np.zeros(66, np.uint8)
    assert ops.pack(ones, packed) == 66
    with pytest.raises(TypeError, match="omnihvd does not sum dtype complex64"):
        protocol.BlockOps("complex64")
    with pytest.raises(ValueError, match="has no"):
        protocol.BlockOps("float32", "altivec")
    with pytest.raises(ValueError, match="whole number"):
        ops.inspect(packed)
    with pytest.raises(ValueError, match="may not hold"):
        ops.pack(ones, packed[:65])
    with pytest.raises(ValueError, match="inside a block"):
        ops.unpack(packed[:65], ones)
    with pytest.raises(ValueError, match="inside a bitmap"):
        ops.unpack(packed[:1], ones)
    with pytest.raises(ValueError, match="goes on"):
        ops.unpack(np.zeros(3, np.uint8), ones)
    with pytest.raises(ValueError, match="as many accumulators"):
        ops.add(ones[:15].copy(), ones)
