"""The kernels' own source on the CPU, against NumPy."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from kernel_emulation import FEW, SANITIZER, Memory, Scattered
from kernel_reference import (
    BLOCK_SIZES,
    DTYPES,
    FLOATS,
    RECORD,
    Case,
    bits_of,
    check_compacted,
    negative_zero,
    nonzero,
    payloads,
    scattered,
)

from omnihvd.kernels.codes import parcel_bytes

PACK, CLEAR_NEGATIVE_ZEROS = 1, 2


def round_trip(kernels, case: Case, pack: bool = True, **place) -> None:
    """Compacts a tensor, and scatters the result over another one."""
    values = case.tensor()
    tensor = Scattered(values, **place)
    module = kernels(case.dtype, case.block_size)
    out = module.compact(tensor, PACK if pack else 0, case.seed)
    check_compacted(values, case, pack, out.totals, out.bitmap, out.records, out.data)
    assert np.array_equal(tensor.values(), values), "the input was modified"

    before = np.random.default_rng(99).integers(0, 255, values.nbytes, np.uint8).view(values.dtype)
    target = Scattered(before, **place)
    module.scatter(target, out.records[: int(out.totals[0])], out.data, case.seed)
    expected = scattered(before, values, case.dtype, case.block_size, pack)
    assert np.array_equal(target.values(), expected)


def elements_of(dtype: str, kib: float) -> int:
    return int(kib * 1024) // bits_of(dtype).itemsize


def pairs():
    """Each dtype in one size of blocks, and float32 in all: each pair is compiled for seconds."""
    for i, dtype in enumerate(DTYPES):
        for j, block_size in enumerate(BLOCK_SIZES):
            is_usual = dtype == "float32" or i % len(BLOCK_SIZES) == j
            yield pytest.param(dtype, block_size, marks=() if is_usual else pytest.mark.slow)


# Packed and not in turns; both for each pair would take minutes.
@pytest.mark.parametrize(("dtype", "block_size"), list(pairs()))
def test_round_trip(kernels, dtype, block_size):
    pack = bool((BLOCK_SIZES.index(block_size) + list(DTYPES).index(dtype)) % 2)
    for seed, (blocks, filled) in enumerate([(0.3, 0.1), (0.7, 1.0), (1.0, 0.6)]):
        size = elements_of(dtype, 40) + 8 * block_size + 13 * (seed + 1)
        round_trip(kernels, Case(dtype, block_size, size, blocks, filled, seed), pack)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "int64", "uint8"])
@pytest.mark.parametrize("blocks", [0.0, 0.01, 0.1, 1.0])
@pytest.mark.parametrize("filled", [0.002, 0.05, 0.5, 0.74, 0.8, 1.0])
def test_densities(kernels, dtype, blocks, filled):
    round_trip(kernels, Case(dtype, 256, elements_of(dtype, 80) - 1, blocks, filled, seed=5))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8"])
@pytest.mark.parametrize("block_size", [32, 256, 1024])
def test_tails(kernels, dtype, block_size):
    tile = 8192 // bits_of(dtype).itemsize
    sizes = [1, 2, 7, 31, 33, block_size - 1, block_size, block_size + 1, tile - 1, tile, tile + 1]
    for seed, size in list(enumerate(sizes))[FEW]:
        for filled in (0.2, 1.0):
            round_trip(kernels, Case(dtype, block_size, size, 1.0, filled, seed))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64", "uint8"])
@pytest.mark.parametrize("block_size", [32, 256])
def test_unaligned(kernels, dtype, block_size):
    for misaligned in range(1, 16 // bits_of(dtype).itemsize)[FEW]:
        size = elements_of(dtype, 17) + misaligned
        case = Case(dtype, block_size, size, 0.5, 0.7, misaligned)
        round_trip(kernels, case, misaligned=misaligned)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8"])
@pytest.mark.parametrize("block_size", [32, 1024])
@pytest.mark.parametrize("longest", [3, 100, 5000])
def test_segments(kernels, dtype, block_size, longest):
    """Blocks and vectors that lie in several segments, down to segments of one element."""
    rng = np.random.default_rng(longest)
    size = elements_of(dtype, 20) + 5
    ends = np.unique(np.append(np.cumsum(rng.integers(1, longest, size)), size))
    pieces = np.diff(np.append(0, ends[ends <= size])).tolist()
    round_trip(kernels, Case(dtype, block_size, size, 0.6, 0.5, 1), pieces=pieces, misaligned=1)


@pytest.mark.parametrize("seed", range(12))
def test_schedules(kernels, seed):
    """Seeds choose which lanes, warps and CTAs run ahead of the others."""
    size = elements_of("float32", 50) + 3
    round_trip(kernels, Case("float32", (64, 256)[seed % 2], size, 0.5, 0.4, seed))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("block_size", [32, 256, 1024])
def test_clears_negative_zeros(kernels, dtype, block_size):
    """In place, a block that nobody sends must hold the same bits on all ranks."""
    case = Case(dtype, block_size, elements_of(dtype, 30) + 5, 0.3, 0.5)
    values = case.tensor()
    values[16384 // values.itemsize : 24576 // values.itemsize] = negative_zero(dtype)  # a tile
    tensor = Scattered(values, misaligned=1)
    out = kernels(dtype, block_size).compact(tensor, PACK | CLEAR_NEGATIVE_ZEROS, 0)
    check_compacted(values, case, True, out.totals, out.bitmap, out.records, out.data)
    expected = values.copy()
    sent = payloads(values, dtype, block_size, True)
    zero = ~np.isin(np.arange(len(values)) // block_size, list(sent))
    expected[zero] = 0
    assert (values[zero] != 0).any()
    assert np.array_equal(tensor.values(), expected)


def test_every_value_of_16_bits(kernels):
    """One element at a time: which bits are zero does not depend on what else is in the block."""
    for dtype in ("float16", "bfloat16"):
        values = np.zeros(65536 * 32, np.uint16)
        values[::32] = np.arange(65536)
        out = kernels(dtype, 32).compact(Scattered(values[: 32 * 4096]), 0, 0)
        expected = np.flatnonzero(nonzero(values[: 32 * 4096 : 32], dtype))
        assert np.array_equal(np.sort(out.records["block"][: int(out.totals[0])]), expected)
        # The signs, infinities and NaN at the ends of the exponent's range.
        ends = np.array([0x7C00, 0x7C01, 0x7F80, 0x7FFF, 0x8000, 0x8001, 0xFC00, 0xFFFF])
        chosen = np.zeros(32 * len(ends), np.uint16)
        chosen[::32] = ends
        out = kernels(dtype, 32).compact(Scattered(chosen), 0, 0)
        assert np.sort(out.records["block"][: int(out.totals[0])]).tolist() == [0, 1, 2, 3, 5, 6, 7]


@pytest.mark.parametrize("dtype, block_size", [("float16", 32), ("float32", 256), ("float64", 64)])
@pytest.mark.parametrize("offset", range(1, 17))
def test_scatter_takes_payloads_at_any_address(kernels, offset, dtype, block_size):
    """Results are scattered from where the transport has put them."""
    case = Case(dtype, block_size, block_size * 20 + 11, 0.9, 0.3, offset)
    values = case.tensor()
    values[block_size * 3 : block_size * 5] = 1  # plain blocks among the packed ones
    # At the end of the data, where reading too far shows, a plain or a short packed one.
    values[block_size * 20 :] = dtype == "float16"
    values[-1] = 1
    data, records = b"", []
    for block, payload in payloads(values, dtype, block_size, True).items():
        data += b"x" * (1 + (offset - 1 - len(data)) % 16)
        records.append((block, len(data) << 16 | len(payload)))
        data += payload
    before = np.full_like(values, 77)
    target = Scattered(before)
    module = kernels(dtype, block_size)
    module.scatter(target, np.array(records, RECORD), np.array(list(data), np.uint8), offset)
    assert np.array_equal(target.values(), scattered(before, values, dtype, block_size, True))


@pytest.mark.parametrize("ctas", [1, 3])
@pytest.mark.parametrize("dtype, block_size", [("int8", 32), ("bfloat16", 256), ("float64", 1024)])
def test_scatter_takes_turns_where_there_are_more_records_than_lanes(
    kernels, dtype, block_size, ctas
):
    case = Case(dtype, block_size, elements_of(dtype, 300) + 5, 0.7, 0.5, ctas)
    values, module = case.tensor(), kernels(dtype, block_size)
    out = module.compact(Scattered(values), PACK, 1)
    records = out.records[: int(out.totals[0])]
    assert module.grid_of_scatter(len(records)) > ctas
    before = np.full_like(values, 3)
    for some in (records, records[:1], records[:0]):
        target = Scattered(before)
        module.scatter(target, some, out.data, 2, ctas)
        chosen = np.isin(np.arange(len(values)) // block_size, some["block"])
        expected = scattered(before, values, dtype, block_size, True)
        assert np.array_equal(target.values(), np.where(chosen, expected, before))


@pytest.mark.parametrize("ctas", [1, 3])
@pytest.mark.parametrize("dtype, block_size", [("int8", 32), ("float32", 256)])
def test_compact_takes_turns_where_there_are_more_tiles_than_warps(
    kernels, dtype, block_size, ctas
):
    case = Case(dtype, block_size, elements_of(dtype, 300) + 5, 0.7, 0.5, ctas)
    values, module = case.tensor(), kernels(dtype, block_size)
    assert module.grid_of_compact(len(values)) > ctas
    out = module.compact(Scattered(values), PACK, ctas, ctas=ctas)
    check_compacted(values, case, True, out.totals, out.bitmap, out.records, out.data)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("factor", [1 / 8, 1 / 3, 1.0])
def test_every_value_of_16_bits_is_scaled(kernels, dtype, factor):
    """In float32, and rounded to the nearest as NumPy does; infinities and NaN stay."""
    bits = np.arange(65536, dtype=np.uint16)
    source, target = Scattered(bits, misaligned=1), Scattered(np.zeros_like(bits))
    kernels(dtype, 256).scale(source, target, factor, dtype == "bfloat16")
    with np.errstate(all="ignore"):
        if dtype == "float16":
            wide = bits.view(np.float16).astype(np.float32)
            expected = (wide * np.float32(factor)).astype(np.float16).view(np.uint16)
        else:
            wide = (bits.astype(np.uint32) << 16).view(np.float32)
            product = (wide * np.float32(factor)).view(np.uint32)
            expected = ((product + 0x7FFF + (product >> 16 & 1)) >> 16).astype(np.uint16)
    nan = np.isnan(wide)
    got = target.values()
    assert np.array_equal(got[~nan], expected[~nan])
    infinity = 0x7C00 if dtype == "float16" else 0x7F80
    assert ((got[nan] & 0x7FFF) > infinity).all()
    assert np.array_equal(source.values(), bits)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size", [1, 5, 9_001])
def test_scaled(kernels, dtype, size):
    values = np.linspace(-3, 7, size).astype(dtype)
    for misaligned in (0, 1):
        target = Scattered(np.full_like(values, 9), misaligned)
        kernels(dtype, 64).scale(Scattered(values), target, 1 / 3)
        assert np.array_equal(target.values(), values * values.dtype.type(1 / 3))


class Union(ctypes.Structure):
    """As in abi.cuh."""

    _fields_ = [("addresses", ctypes.c_uint64 * 3), ("numbers", ctypes.c_uint64 * 4)]


@pytest.mark.parametrize("ctas", [1, 4])
@pytest.mark.parametrize(
    "dtype, block_size, words_per_chunk, misaligned",
    [("float32", 256, 2, 0), ("bfloat16", 32, 150, 1), ("float64", 1024, 1, 0), ("int8", 64, 5, 3),
     ("float32", 32, 200, 0)],
)  # fmt: skip
def test_union(kernels, dtype, block_size, words_per_chunk, misaligned, ctas):
    """The ranks' blocks are marked, united, gathered in three parts, and spread over a tensor."""
    module, ranks = kernels(dtype, block_size), 3
    words = 2 * words_per_chunk + 1 if words_per_chunk > 9 else 11
    size = 32 * block_size * words - block_size - 3
    blocks, trailers = -(-size // block_size), (0x01000305, 0x00070004, 0x00050205)
    cases = [Case(dtype, block_size, size, 0.2, 0.4, seed) for seed in range(ranks)]
    values = [case.tensor() for case in cases]
    marks = [Memory(32 * words + 4) for _ in range(ranks)]
    for rank, mine in enumerate(values):
        tensor = Scattered(mine, misaligned)
        clear = CLEAR_NEGATIVE_ZEROS * (rank == 1)
        module.run(
            "mark", tensor.arguments[0], size, clear, trailers[rank], marks[rank].address, ctas,
            rank,
        )  # fmt: skip
        zero = ~np.isin(
            np.arange(size) // block_size, list(payloads(mine, dtype, block_size, False))
        )
        assert np.array_equal(tensor.values(), np.where(zero & bool(clear), 0, mine))
    present = [
        np.isin(np.arange(blocks), list(payloads(mine, dtype, block_size, False)))
        for mine in values
    ]
    for rank in range(ranks):
        assert np.array_equal(marks[rank].bytes[:blocks], present[rank])
        assert not marks[rank].bytes[blocks : 32 * words].any()
        assert marks[rank].bytes[-4:].view(np.uint32)[0] == trailers[rank]

    # NCCL's maximum of bytes.
    together, everything = np.any(present, axis=0), Memory(32 * words + 4)
    everything.bytes[:] = np.max([m.bytes for m in marks], axis=0)
    united, prefix = Memory(4 * words), Memory(4 * words)
    chunks = -(-words // words_per_chunk)
    counts, arrived = Memory(8 * chunks), np.zeros(1, np.uint32)
    starts, seen = Memory(8 * (chunks + 1)), np.zeros(4, np.uint64)
    for number in (6, 7):  # the second finds what the first has left behind
        module.run(
            "unite", marks[1].address, everything.address, words, words_per_chunk, united.address,
            prefix.address, counts.address, arrived.ctypes.data, starts.address,
            seen.ctypes.data, number, ctas, number,
        )  # fmt: skip
        assert arrived[0] == 0
        assert seen.tolist() == [number, together.sum(), present[1].sum(), 0x01070305]
    bits = np.unpackbits(united.bytes, bitorder="little")
    assert np.array_equal(bits[:blocks], together) and not bits[blocks:].any()
    of_chunk = np.arange(blocks) // (32 * words_per_chunk)
    per_chunk = np.bincount(of_chunk, together, chunks).astype(int)
    assert starts.bytes.view(np.uint64).tolist() == [0, *np.cumsum(per_chunk).tolist()]

    padded = np.zeros(blocks * block_size, values[0].dtype)
    padded[:size] = values[2]
    dense = padded.reshape(blocks, block_size)[together]
    source, before = Scattered(values[2], misaligned), np.full_like(values[0], 9)
    room = len(dense) // 2 - 1 or 1
    for fill in (False, True):
        target = Scattered(before, misaligned)
        for first in range(0, len(dense), room):
            part = dense[first : first + room]
            buffer = Memory(part.nbytes)
            view = Union()
            view.addresses[:] = united.address, prefix.address, starts.address
            view.numbers[:] = words, words_per_chunk, first, room
            at = ctypes.addressof(view)
            module.run("gather", source.arguments[0], size, at, buffer.address, ctas, 1)
            buffer.check()
            assert np.array_equal(buffer.bytes, part.reshape(-1).view(np.uint8))
            fills = fill and first == 0
            module.run("spread", target.arguments[0], size, at, buffer.address, fills, ctas, 2)
        in_union = np.repeat(together, block_size)[:size]
        expected = np.where(in_union, values[2], 0 if fill else before)
        assert np.array_equal(target.values(), expected)
    for memory in (*marks, everything, united, prefix, counts, starts):
        memory.check()


class Rest(ctypes.Structure):
    """As in abi.cuh."""

    _fields_ = (
        ("asked", ctypes.c_uint32), ("answered", ctypes.c_uint32), ("blocks", ctypes.c_uint64),
        ("dtype", ctypes.c_uint32), ("failed", ctypes.c_uint32), ("alone", ctypes.c_uint32),
        ("lost", ctypes.c_uint32),
    )  # fmt: skip


@pytest.mark.parametrize("end", ["answered", "failed", "alone", "nothing to ask"])
def test_rest(kernels, end):
    """Blocks 3 to 9 of a dense tensor of 10 are doubled by the host, four at a time."""
    block, size = 64, 9 * 64 + 5
    values = np.arange(1, size + 1, dtype=np.float32)
    module, source = kernels("float32", block), Scattered(values)
    target = Scattered(np.zeros_like(values), misaligned=1)
    first = 3 if end != "nothing to ask" else 10
    bits, prefix, starts = np.uint32([2**10 - 1]), np.uint32([0]), np.uint64([0, 10])
    view, words, window = Union(), Rest(asked=7, answered=7), Memory(4 * block * 4)
    view.addresses[:] = bits.ctypes.data, prefix.ctypes.data, starts.ctypes.data
    view.numbers[:] = 1, 128, first, 4
    asked = []

    def host() -> None:
        for number in (8, 9):
            while words.asked != number:
                pass
            asked.append((words.blocks, words.dtype))
            if end != "answered":
                setattr(words, end, 1)
                return
            window.bytes.view(np.float32)[:] *= 4
            words.answered = number

    helper = threading.Thread(target=host)
    if first < 10:
        helper.start()
    run = threading.Thread(
        target=module.run,
        args=("rest", source.arguments[0], target.arguments[0], size, ctypes.addressof(view),
              ctypes.addressof(words), window.address, 5, 0.5, 0, 1, 0),
    )  # fmt: skip
    run.start()
    run.join()
    window.check()
    assert words.lost == (end in ("failed", "alone"))
    expected = np.zeros_like(values)
    if first < 10:
        helper.join()
        expected[3 * block :] = 2 * values[3 * block :]
    if end in ("failed", "alone"):
        expected.view(np.uint32)[:] = 0xFFFFFFFF
    assert asked == {"answered": [(4, 5), (3, 5)], "nothing to ask": []}.get(end, [(4, 5)])
    assert np.array_equal(target.values().view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("rule, bits", [(0, 8), (1, 4), (2, 8), (3, 2), (4, 1), (5, 1)])
def test_codes_in_any_order(kernels, rule, bits):
    """Whichever lanes, warps and CTAs run ahead. (What they are: test_emulated_codecs.py.)"""
    module, blocks, ranks = kernels("float32", 256), 5, 2
    rng = np.random.default_rng(rule)
    own = [rng.standard_normal(5 * 256 - 7).astype(np.float32) for _ in range(ranks)]
    nbytes = parcel_bytes((rule, bits), blocks, 256)
    results = set()
    for order in range(3):
        parcels = Memory(ranks * nbytes)
        parcels.bytes[:] = 0
        for rank, values in enumerate(own):
            tensor, to = Scattered(values, rank), parcels.address + rank * nbytes
            module.run(
                "encode", tensor.arguments[0], len(values), 0, rule, bits, 7, rank, 0, blocks, to,
                1 + order % 2, order,
            )  # fmt: skip
        out = Scattered(np.zeros_like(own[0]))
        module.run(
            "decode", out.arguments[0], out.size, rule, bits, 7, ranks, blocks, parcels.address,
            1 + order % 2, order,
        )  # fmt: skip
        parcels.check()
        results.add((parcels.bytes.tobytes(), out.values().tobytes()))
    assert len(results) == 1
    total = sum(own)
    assert np.corrcoef(out.values(), total)[0, 1] > 0.5


@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32", "float64"])
def test_packs_what_the_engine_packs(kernels, dtype):
    module = kernels(dtype, 1024)
    for n in [*range(1, 66), 1023, 1024]:
        assert all(module.same_packing(n, nonzero) for nonzero in range(n + 1))


# Each kernel, on elements of each width and the smallest and largest blocks, in three modules, for
# compiling one takes as long as running ten.
TO_SANITIZE = (
    "test_tails[256-float32]",
    "test_schedules[1]",
    "test_schedules[11]",
    "test_union[float32-256-2-0-4]",
    "test_scatter_takes_payloads_at_any_address[15-float32-256]",
    "test_unaligned[32-bfloat16]",
    "test_segments[100-32-float16]",
    "test_scatter_takes_payloads_at_any_address[16-float16-32]",
    "test_union[bfloat16-32-150-1-1]",
    "test_segments[5000-1024-float64]",
    "test_clears_negative_zeros[1024-float64]",
    "test_codes_in_any_order[0-8]",
    "test_codes_in_any_order[3-2]",
    "test_codes_in_any_order[5-1]",
)
SPARSIFY_TO_SANITIZE = ("test_schedules[1]", "test_single_elements_in_one_pass[rest-float16]")


@pytest.mark.skipif(bool(SANITIZER), reason="runs the others")
@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    "sanitizer, library",
    [
        # The guards around all memory find most of that, too.
        pytest.param("address,undefined", "asan", marks=pytest.mark.slow),
        ("thread", "tsan"),
    ],
)
def test_sanitized(sanitizer, library):
    """Some of these tests with GCC's sanitizers; that of races knows the rules of a warp."""
    library = subprocess.run(
        ["g++", f"-print-file-name=lib{library}.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if not Path(library).is_absolute():
        pytest.skip(f"the compiler has no {sanitizer} sanitizer")
    command = [sys.executable, "-m", "pytest", "-qxs", "-p", "no:cacheprovider"]
    sparsify = Path(__file__).with_name("test_emulated_sparsify.py")
    tests = [f"{__file__}::{test}" for test in TO_SANITIZE]
    tests += [f"{sparsify}::{test}" for test in SPARSIFY_TO_SANITIZE]
    done = subprocess.run(
        [*command, *tests],
        env={
            **os.environ,
            "LD_PRELOAD": library,
            "ASAN_OPTIONS": "detect_leaks=0",
            "OMNIHVD_TEST_KERNEL_SANITIZER": sanitizer,
        },
        capture_output=True,
        text=True,
        timeout=190,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
