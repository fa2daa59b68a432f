"""The kernels on a GPU, against NumPy."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from kernel_reference import (
    BLOCK_SIZES,
    DTYPES,
    RECORD,
    Case,
    bits_of,
    check_compacted,
    negative_zero,
    payloads,
    scattered,
)
from union_kernels import check_union_kernels

from omnihvd import kernels
from omnihvd.kernels import Staging, compact, scatter


def why_not() -> str:
    try:
        import cupy

        cupy.cuda.runtime.getDeviceCount()
    except Exception as error:
        return f"no usable GPU: {error}"
    return ""


pytestmark = [pytest.mark.gpu, pytest.mark.skipif(bool(why_not()), reason=why_not() or "GPU")]


def device(values: np.ndarray, dtype: str, misaligned: int = 0):
    """The bits as a CuPy array of the dtype, some elements behind an aligned address."""
    import cupy

    if dtype == "bfloat16":
        dtype = pytest.importorskip("ml_dtypes").bfloat16
    buffer = cupy.zeros(len(values) + misaligned, values.dtype)
    buffer[misaligned:] = cupy.asarray(values)
    return buffer[misaligned:].view(dtype)


def bits(array, like: np.ndarray) -> np.ndarray:
    return array.view(like.dtype).get()


def check(case: Case, pack: bool, misaligned: int = 0) -> None:
    values = case.tensor()
    tensor = device(values, case.dtype, misaligned)
    blocks = compact(tensor, case.block_size, pack=pack)
    host = blocks.to_host()
    records = np.zeros(len(host.blocks), RECORD)
    records["block"], records["place"] = host.blocks, host.offsets << 16 | host.lengths
    totals = np.array([len(host.blocks), host.data.nbytes], np.uint64)
    check_compacted(values, case, pack, totals, host.bitmap.view(np.uint8), records, host.data)
    assert np.array_equal(bits(tensor, values), values), "the input was modified"

    before = np.random.default_rng(1).integers(0, 255, values.nbytes, np.uint8).view(values.dtype)
    for source in (blocks, host):
        out = device(before, case.dtype, misaligned)
        scatter(source, out)
        expected = scattered(before, values, case.dtype, case.block_size, pack)
        assert np.array_equal(bits(out, values), expected)
        scatter(source, out, zero=True)
        expected = scattered(np.zeros_like(values), values, case.dtype, case.block_size, pack)
        assert np.array_equal(bits(out, values), expected)


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("pack", [False, True])
def test_round_trip(dtype, block_size, pack):
    for seed, (blocks, filled) in enumerate([(0.0, 1.0), (0.01, 0.1), (0.5, 0.5), (1.0, 1.0)]):
        elements = (2 << 20) // bits_of(dtype).itemsize + 13 * seed
        check(Case(dtype, block_size, elements, blocks, filled, seed), pack)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8"])
def test_unaligned_and_short(dtype):
    for misaligned in range(16 // bits_of(dtype).itemsize):
        for elements in (1, 31, 255, 257, 100_003):
            check(Case(dtype, 256, elements, 0.7, 0.5, misaligned), True, misaligned)


def test_segments():
    case = Case("float32", 256, 1_000_003, 0.3, 0.5)
    values = case.tensor()
    cuts = np.unique(np.random.default_rng(3).integers(0, len(values), 300))
    parts = [device(part, "float32", 1) for part in np.split(values, cuts)]
    host = compact(parts).to_host()
    assert sorted(host.blocks.tolist()) == sorted(payloads(values, "float32", 256, True))
    outs = [device(np.ones_like(part), "float32", 3) for part in np.split(values, cuts)]
    scatter(host, outs, zero=True)
    result = np.concatenate([bits(out, values) for out in outs])
    assert np.array_equal(result, scattered(np.zeros_like(values), values, "float32", 256, True))


def test_many_times_on_streams():
    """Runs overlap on streams of their own, with their own stagings."""
    import cupy

    case = Case("float32", 256, 3_000_000, 0.1, 1.0)
    values = case.tensor()
    tensor, expected = device(values, "float32"), payloads(values, "float32", 256, True)
    cupy.cuda.Device().synchronize()
    runs = [(cupy.cuda.Stream(non_blocking=True), Staging()) for _ in range(4)]
    for _ in range(20):
        results = [compact(tensor, staging=g, stream=s) for s, g in runs]
        for blocks in results:
            host = blocks.to_host()
            got = {
                int(b): host.data[int(o) : int(o + n)].tobytes()
                for b, o, n in zip(host.blocks, host.offsets, host.lengths)
            }
            assert got == expected


def test_clears_negative_zeros():
    """The flag of abi.cuh that the engine sets for sums in place."""
    import cupy

    values = np.full(100_000, negative_zero("float32"), np.uint32)
    values[5000] = 7
    tensor = device(values, "float32")
    staging = [cupy.zeros(n, np.uint64) for n in (2, 10, 1000, 60_000)]
    kernels.module("float32", 256).get_function("compact")(
        (-(-100_000 // 8192),), (128,),
        (np.uint64(tensor.data.ptr), np.uint64(100_000), np.uint64(0), np.uint32(0), np.uint32(3),
         *(np.uint64(array.data.ptr) for array in staging)),
    )  # fmt: skip
    sent = slice(5000 // 256 * 256, 5000 // 256 * 256 + 256)
    expected = np.zeros_like(values)
    expected[sent] = values[sent]
    assert np.array_equal(bits(tensor, values), expected)


@pytest.mark.parametrize(
    "dtype, block_size, size",
    [("float32", 256, 3_000_001), ("bfloat16", 32, 700_003), ("float64", 1024, 999_999),
     ("int8", 64, 4_000_000), ("float32", 32, 31)],
)  # fmt: skip
def test_union_kernels(dtype, block_size, size):
    import cupy

    check_union_kernels(cupy, dtype, block_size, size)


def test_torch_tensors():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this PyTorch has no CUDA")
    for dtype in (torch.bfloat16, torch.float32, torch.int64):
        tensor = torch.zeros(40, 1000, device="cuda", dtype=dtype)
        tensor[3:5] = 2
        out = torch.ones_like(tensor)
        stream = torch.cuda.current_stream()
        scatter(compact(tensor, stream=stream), out, zero=True, stream=stream)
        assert torch.equal(out, tensor)


@pytest.mark.parametrize("block_size", [32, 256, 1024])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_sparsify(dtype, block_size):
    """Integers have exact norms, and many equal ones. The data is some elements behind an aligned
    address, on a stream of its own."""
    import cupy

    random = np.random.default_rng(block_size)
    for blocks, misaligned in [(1, 0), (37, 1), (5000, 3)]:
        values = random.integers(-2, 3, blocks * block_size - 5).astype(dtype)
        rest = random.integers(-2, 3, len(values)).astype(np.float32)
        gradient = device(values, dtype, misaligned)
        kept, largest = cupy.asarray(rest), (blocks + 2) // 3
        cupy.cuda.Device().synchronize()
        stream = cupy.cuda.Stream(non_blocking=True)
        norms = kernels.sparsify(
            gradient, largest=largest, rest=kept, block_size=block_size, stream=stream
        )
        stream.synchronize()
        total = values.astype(np.float32) + rest
        starts = np.arange(0, len(values), block_size)
        expected = np.sqrt(np.add.reduceat(total**2, starts))
        assert np.array_equal(norms.get(), expected)
        sends = np.zeros(blocks, bool)
        sends[np.argsort(-expected, kind="stable")[:largest]] = True
        sends = np.repeat(sends, block_size)[: len(values)]
        assert np.array_equal(gradient.get(), np.where(sends, total, 0).astype(dtype))
        assert np.array_equal(kept.get(), np.where(sends, 0, total))


@pytest.mark.timeout(600)
@pytest.mark.skipif("COMPUTE_SANITIZER" in os.environ, reason="runs the others")
@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "initcheck"])
def test_compute_sanitizer(tool):
    sanitizer = shutil.which("compute-sanitizer")
    if not sanitizer:
        pytest.skip("no compute-sanitizer on PATH (it comes with the CUDA toolkit)")
    tests = "unaligned or segments or negative or sparsify"
    tests += " or round_trip and (float32-256 or int8-32)"
    done = subprocess.run(
        [
            *(sanitizer, "--tool", tool, "--error-exitcode", "9"),
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
            *("-m", "gpu", "-k", tests, __file__),
        ],
        env={**os.environ, "COMPUTE_SANITIZER": tool},
        capture_output=True,
        text=True,
        timeout=580,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


@pytest.mark.slow
def test_more_than_4_gib():
    """Offsets and counts are of 64 bits."""
    import cupy

    n = (5 << 30) // 4
    free, _ = cupy.cuda.runtime.memGetInfo()
    if free < 5 * 4 * n:
        pytest.skip(f"needs 25 GiB of device memory, {free >> 30} are free")
    tensor = cupy.zeros(n, np.float32)
    where = [0, n // 2, n - 1]
    tensor[where] = 1
    blocks = compact(tensor, pack=False)
    assert sorted(blocks.records[:, 0].get().tolist()) == [i // 256 for i in where]
    tensor[:] = 1
    out = cupy.zeros(n, np.float32)
    scatter(compact(tensor), out)
    assert bool((out == 1).all())


@pytest.mark.parametrize("block_size", [32, 256, 1024])
@pytest.mark.parametrize("name", [("natural", 0), ("qsgd", 4), ("terngrad", 0), ("one_bit", 0)])
def test_codes_are_the_engine_s(block_size, name):
    import cupy
    from _engine_tests import codec as engine

    codec, who, blocks = engine.Codec(*name, seed=3), 2, 40
    values = np.random.default_rng(1).standard_normal(blocks * block_size - 9).astype(np.float32)
    values[:block_size] *= np.float32(1e-39)  # denormal numbers count
    values[block_size : 2 * block_size] *= np.float32(1e37)
    coder, tensor = kernels.Coder(block_size), cupy.asarray(values)
    parcels = cupy.empty(coder.parcel_bytes(codec.coding(), blocks), cupy.uint8)
    coder.encode(tensor, parcels, codec.coding(), blocks, seed=3, who=who)
    coder.decode(parcels, tensor, codec.coding(), blocks, seed=3)
    for number, first in enumerate(range(0, len(values), block_size)):
        block = values[first : first + block_size]
        coded = codec.encode(block, engine.block_key(3, who, number))
        expected = codec.decode(coded, len(block))
        assert np.array_equal(tensor[first : first + block_size].get(), expected), number
