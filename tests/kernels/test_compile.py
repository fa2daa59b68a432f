"""NVRTC compiles the kernels for every architecture that it knows; needs no GPU."""

from __future__ import annotations

import re
import struct

import pytest

from omnihvd.kernels.build import BLOCK_SIZES, compile_cubin, cubin

pytest.importorskip("cupy", reason="CuPy is not installed")
from cupy.cuda import nvrtc

try:
    ARCHS = [f"sm_{arch}" for arch in nvrtc.getSupportedArchs() if arch >= 75]
except Exception as error:  # CuPy raises RuntimeError if it cannot open the library
    pytest.skip(f"NVRTC cannot be used: {error}", allow_module_level=True)

# One dtype of each element width and zero test.
MODULES = ["int8", "float16", "float32", "int32", "float64", "int64"]
SPILLED_BYTES = 84  # by a thread, at most: compact of int64 spills so many on sm_100 to sm_110
SHARED_BYTES = 48 << 10  # what every architecture gives without asking


def check(dtype: str, block_size: int, arch: str) -> None:
    names = ["compact", "scatter", "mark", "unite", "gather", "spread", "rest"]
    names += ["encode", "decode"] * (dtype == "float32")
    check_source("kernels.cu", names, dtype, block_size, arch)


def check_sparsify(dtype: str, block_size: int, arch: str) -> None:
    check_source("sparsify.cu", ["accumulate", "choose", "split", "above"], dtype, block_size, arch)


def check_source(source: str, names: list[str], dtype: str, block_size: int, arch: str) -> None:
    binary, log = compile_cubin(dtype, block_size, arch, source)
    assert "warning" not in log, log
    for function in names:
        found = re.search(
            rf"Compiling entry function '{function}'(.*?)Compile time", log, re.DOTALL
        )
        assert found, log
        usage = found.group(1)
        spilled = int(re.search(r"(\d+) bytes spill stores", usage).group(1))
        stack = int(re.search(r"(\d+) bytes stack frame", usage).group(1))
        assert max(spilled, stack) <= SPILLED_BYTES, usage
        shared = re.search(r"(\d+) bytes smem", usage)
        assert not shared or int(shared.group(1)) <= SHARED_BYTES
    # A whole ELF file, up to its last program header.
    assert binary[:4] == b"\x7fELF"
    (offset,) = struct.unpack_from("<Q", binary, 32)
    size, count = struct.unpack_from("<HH", binary, 54)
    assert len(binary) == offset + size * count


@pytest.mark.parametrize("arch", ARCHS)
def test_architectures(arch):
    check("float32", 256, arch)


def half(dtypes: list[str]) -> list[tuple[int, tuple[str, int]]]:
    """The modules, by number: of each dtype and each block size. (The emulation compiles the
    source of all.)"""
    chosen = [
        (dtype, BLOCK_SIZES[2 * i + n % 2]) for n, dtype in enumerate(dtypes) for i in range(3)
    ]
    return list(enumerate(chosen))


@pytest.mark.parametrize("number, module", half(MODULES))
def test_modules(number, module):
    """On architectures in turn."""
    check(*module, ARCHS[number % len(ARCHS)])


@pytest.mark.parametrize("number, module", half(["float16", "float32"]))
def test_sparsify(number, module):
    """The same of sparsify.cu."""
    check_sparsify(*module, ARCHS[number % len(ARCHS)])


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("dtype", MODULES)
def test_all_modules_on_all_architectures(arch, dtype):
    for block_size in BLOCK_SIZES:
        check(dtype, block_size, arch)
        if dtype in ("float16", "float32"):
            check_sparsify(dtype, block_size, arch)


def test_says_what_is_wrong():
    with pytest.raises(RuntimeError, match=r"cannot compile kernels\.cu for sm_1"):
        cubin("float32", 256, "sm_1")
    with pytest.raises(TypeError, match="dtype bool"):
        cubin("bool", 256, "sm_90")
