"""detect(), compact() and scatter() themselves, on a double of CuPy that emulates the kernels."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from cuda_double import DLPack, cubin, device_array, stream_at
from kernel_reference import RECORD, Case, check_compacted, nonzero, payloads, scattered

from omnihvd import kernels
from omnihvd.kernels import HostBlocks, Staging, compact, detect, scatter

DLPACK_CODES = {"int32": 0, "uint8": 1, "float32": 2, "bfloat16": 4}


pytestmark = pytest.mark.usefixtures("no_gpu")


def as_dtype(values: np.ndarray, dtype: str) -> np.ndarray:
    return values if dtype == "bfloat16" else values.view(dtype)


def check(blocks: HostBlocks, values: np.ndarray, case: Case, pack: bool) -> None:
    records = np.zeros(len(blocks.blocks), RECORD)
    records["block"], records["place"] = blocks.blocks, blocks.offsets << 16 | blocks.lengths
    totals = np.array([len(blocks.blocks), blocks.data.nbytes], np.uint64)
    check_compacted(values, case, pack, totals, blocks.bitmap.view(np.uint8), records, blocks.data)


@pytest.mark.parametrize("dtype", ["float32", "int32", "uint8"])
@pytest.mark.parametrize("pack", [False, True])
def test_cupy_arrays(dtype, pack):
    case = Case(dtype, 256, 30011, 0.4, 0.3)
    values = case.tensor()
    tensor = device_array(as_dtype(values, dtype)[:30000].reshape(30, 1000))
    values = values[:30000]
    blocks = compact(tensor, pack=pack)
    check(blocks.to_host(), values, case, pack)
    assert blocks.count == len(payloads(values, dtype, 256, pack))

    out = device_array(np.full_like(np.asarray(tensor), 7))
    before = np.asarray(out).copy().reshape(-1).view(values.dtype)
    scatter(blocks, out)
    stream_at(0).synchronize()
    expected = scattered(before, values, dtype, 256, pack)
    assert np.array_equal(np.asarray(out).reshape(-1).view(values.dtype), expected)


@pytest.mark.parametrize("dtype", DLPACK_CODES)
@pytest.mark.parametrize("strides", [False, True])
def test_dlpack(dtype, strides):
    case = Case(dtype, 128, 20001, 0.5, 0.5)
    values = case.tensor()
    tensor = DLPack(as_dtype(values, dtype), DLPACK_CODES[dtype], strides=strides)
    stream = stream_at(0x700)
    host = compact(tensor, 128, stream=0x700).to_host()
    assert tensor.stream == 0x700, "the tensor's framework must hear of the stream"
    check(host, values, case, True)

    before = np.full_like(values, 3)
    out = DLPack(as_dtype(before, dtype), DLPACK_CODES[dtype])
    expected = scattered(np.zeros_like(values), values, dtype, 128, True)
    scatter(host, out, zero=True, stream=stream)
    stream.synchronize()
    assert np.array_equal(before, expected)


@pytest.mark.parametrize("dtype", DLPACK_CODES)
@pytest.mark.parametrize("elements", [0, 1, 33, 30011])
def test_detect(dtype, elements):
    """Arrays with DLPack, on a stream of the caller's; -0.0 is a zero, NaN is none."""
    case = Case(dtype, 32, elements, 0.4, 0.3, seed=elements)
    values = case.tensor()
    tensor = DLPack(as_dtype(values, dtype), DLPACK_CODES[dtype])
    marks = detect(tensor, 32, stream=0x900)
    assert marks.dtype == np.uint8 and marks.shape == (-(-elements // 32),)
    stream_at(0x900).synchronize()
    assert np.flatnonzero(marks).tolist() == sorted(payloads(values, dtype, 32, False))
    assert set(np.unique(marks)) <= {0, 1}


def test_detect_refuses():
    for tensor, error in [([1.0], TypeError), (device_array(FLOATS).T, ValueError)]:
        with pytest.raises(error):
            detect(tensor)
    with pytest.raises(ValueError, match="block_size is 48"):
        detect(device_array(FLOATS), 48)


def test_several_tensors_as_one():
    case = Case("float32", 64, 10000, 0.5, 0.4)
    values = case.tensor()
    cuts = [0, 1, 1, 4000, 4003, 10000]
    parts = [device_array(values[a:b].view("float32")) for a, b in zip(cuts, cuts[1:])]
    host = compact(parts, 64).to_host()
    check(host, values, case, True)
    outs = [device_array(np.ones_like(np.asarray(part))) for part in parts]
    scatter(host, outs, zero=True)
    stream_at(0).synchronize()
    result = np.concatenate([np.asarray(out) for out in outs]).view(np.uint32)
    assert np.array_equal(result, scattered(np.zeros_like(values), values, "float32", 64, True))


def test_staging_is_reused():
    staging = Staging()
    addresses = set()
    for seed in range(4):
        case = Case("float32", 256, 20000 - 100 * seed, 0.5, 0.3, seed)
        values = case.tensor()
        host = compact(device_array(values.view("float32")), staging=staging).to_host()
        check(host, values, case, True)
        addresses.add((host.data.ctypes.data, host.blocks.ctypes.data, host.bitmap.ctypes.data))
    assert len(addresses) == 1


@pytest.mark.parametrize("elements", [0, 1, 5])
def test_small(elements):
    values = np.arange(elements, dtype=np.float32)
    host = compact(device_array(values)).to_host()
    assert len(host.blocks) == (nonzero(values.view(np.uint32), "float32").any())
    out = device_array(np.full(elements, 9, np.float32))
    scatter(host, out, zero=True)
    stream_at(0).synchronize()
    assert np.array_equal(np.asarray(out), values)


def test_waits_for_the_stream_of_a_cupy_array():
    values = device_array(np.zeros(1000, np.float32))
    stream_at(0).queue(lambda: values.fill(1))
    assert compact(values, stream=0x800).count == 4


FLOATS = np.ones((8, 64), np.float32)


@pytest.mark.parametrize(
    "tensor, block_size, error, message",
    [
        (FLOATS, 256, TypeError, "host memory.*move it to a CUDA device"),
        ([1.0, 2.0], 256, TypeError, "float is no device array"),
        ([], 256, ValueError, "an empty sequence"),
        (DLPack(FLOATS, 2, device_type=10), 256, TypeError, "host memory or on a foreign device"),
        (DLPack(FLOATS, 5), 256, TypeError, "complex32 is not supported; one of float16"),
        (DLPack(FLOATS, 6), 256, TypeError, "bool32 is not supported"),
        (DLPack(FLOATS[:, ::2], 2), 256, ValueError, r"shape \(8, 32\) is not C-contiguous"),
        (DLPack(FLOATS.T, 2), 256, ValueError, "contiguous"),
        (device_array(FLOATS).T, 256, ValueError, "contiguous"),
        (device_array(FLOATS.view(np.uint32)), 256, TypeError, "uint32 is not supported"),
        (device_array(FLOATS), 48, ValueError, "block_size is 48; it must be one of"),
        (device_array(FLOATS), 2048, ValueError, "block_size is 2048"),
        (
            [device_array(FLOATS), device_array(FLOATS.view(np.int32))],
            256,
            ValueError,
            "several dtypes: float32, int32",
        ),
    ],
)
def test_refuses(tensor, block_size, error, message):
    with pytest.raises(error, match=message):
        compact(tensor, block_size)


def test_refuses_blocks_that_do_not_fit():
    host = compact(device_array(FLOATS)).to_host()
    for out in (np.ones(511, np.float32), np.ones(512, np.int32)):
        with pytest.raises(ValueError, match="the blocks are of a tensor of 512 of float32"):
            scatter(host, device_array(out))
    for name, message in [
        ("blocks", "lies beyond 512 elements"),
        ("offsets", "a block ends behind the"),
        ("lengths", "bytes are more than a block"),
    ]:
        bad = HostBlocks(**{**vars(host), name: getattr(host, name) + np.uint64(1 << 14)})
        with pytest.raises(ValueError, match=message):
            scatter(bad, device_array(np.ones(512, np.float32)))
    short = HostBlocks(**{**vars(host), "lengths": host.lengths[1:]})
    with pytest.raises(ValueError, match="blocks, offsets and lengths differ in length"):
        scatter(short, device_array(np.ones(512, np.float32)))


def codes(count: int, first: int = 0) -> np.ndarray:
    """Device memory that begins `first` bytes behind a whole line."""
    array = device_array(np.full(count + 256, 0xA5, np.uint8))
    begin = -array.ctypes.data % 128 + first
    return array[begin : begin + count]


@pytest.mark.parametrize("from_file", [False, True])
def test_codes(tmp_path, from_file):
    """Two ranks' tensors are encoded, and added up."""
    file = tmp_path / "module"
    file.write_bytes(cubin("float32", 64, "sm_90"))
    coder = kernels.Coder(64, file if from_file else None)
    coding, blocks = (1, 8), 5  # random levels
    values = [np.arange(-150, 150, dtype=np.float32), np.full(300, 127, np.float32)]
    nbytes = coder.parcel_bytes(coding, blocks)
    parcels, out = codes(2 * nbytes), device_array(np.zeros(300, np.float32))
    tensors = [device_array(mine) for mine in values]
    for rank, mine in enumerate(tensors):
        coder.encode(mine, parcels[rank * nbytes :], coding, blocks, seed=3, who=rank)
    assert (parcels == 0xA5).all(), "it waits for nobody"
    coder.decode(parcels, out, coding, blocks, seed=3, count=2)
    stream_at(0).synchronize()
    np.testing.assert_allclose(out, sum(values), atol=150 / 127 + 1e-4)

    rest = device_array(np.full(300, 0.25, np.float32))  # of levels of 150 / 127
    coder.encode(tensors[0], parcels, coding, blocks, seed=3, who=0, rest=rest)
    coder.decode(parcels, out, coding, blocks, seed=3)
    stream_at(0).synchronize()
    np.testing.assert_allclose(out + rest, values[0] + 0.25, atol=1e-4)
    np.testing.assert_allclose(tensors[0], values[0] + 0.25, atol=0)
    with pytest.raises(ValueError, match="rest has 299 elements"):
        coder.encode(tensors[0], parcels, coding, blocks, seed=3, who=0, rest=rest[1:])

    for bad, message in [
        (codes(nbytes - 1), "where 640 are needed"),
        (codes(nbytes, first=64), "no multiple of 128"),
        (tensors[1], "must be of float32 and of uint8"),
    ]:
        with pytest.raises((ValueError, TypeError), match=message):
            coder.encode(tensors[0], bad, coding, blocks, seed=0, who=0)
    with pytest.raises(ValueError, match="count is 2"):
        coder.decode(parcels, out, coding, 2, seed=3, count=2)
    with pytest.raises(ValueError, match="block_size is 8"):
        kernels.Coder(8)


def test_import_needs_no_cupy():
    """In a fresh interpreter in which CuPy cannot be imported."""
    code = f"""
import sys
sys.modules["cupy"] = None
sys.path.insert(0, {str(Path(__file__).resolve().parents[2])!r})
import kernels
try:
    kernels.Coder()
except ImportError as error:
    assert "pip install 'omnihvd[cuda]'" in str(error), error
else:
    raise AssertionError("no error")
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_dtypes_are_the_engine_s():
    from omnihvd import engine

    assert list(kernels.DTYPES) == engine.session.dtypes
