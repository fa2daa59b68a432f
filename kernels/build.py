"""Compiles the CUDA sources: one module for each element width, zero test and block size."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from types import ModuleType
from typing import Any

FOLDER = Path(__file__).resolve().parent

# width in bytes; whether the sign of zero counts for nothing
DTYPES = {
    "float16": (2, True),
    "bfloat16": (2, True),
    "float32": (4, True),
    "float64": (8, True),
    "int8": (1, False),
    "uint8": (1, False),
    "int32": (4, False),
    "int64": (8, False),
}
BLOCK_SIZES = (32, 64, 128, 256, 512, 1024)  # elements


def cupy() -> ModuleType:
    """CuPy, or ImportError that says how to get it."""
    try:
        import cupy
    except ImportError as error:
        raise ImportError(
            f"omnihvd.kernels needs CuPy ({error}): pip install 'omnihvd[cuda]', on a machine with "
            "an NVIDIA driver for CUDA 13 (from 580 on), or 'omnihvd[cuda12]'"
        ) from error
    return cupy


def check(dtype: str, block_size: int) -> None:
    """Raises TypeError or ValueError unless there are kernels for these."""
    if dtype not in DTYPES:
        raise TypeError(f"dtype {dtype} is not supported; one of {', '.join(DTYPES)} is")
    if block_size not in BLOCK_SIZES:
        raise ValueError(f"block_size is {block_size}; it must be one of {BLOCK_SIZES}")


def source() -> str:
    return (FOLDER / "kernels.cu").read_text()


def options(dtype: str, block_size: int) -> tuple[str, ...]:
    check(dtype, block_size)
    width, is_float = DTYPES[dtype]
    # CuPy's cache knows the options but not the included files: hence their digest.
    digest = hashlib.sha256(b"".join(f.read_bytes() for f in sorted(FOLDER.glob("*.cuh"))))
    return (
        "-std=c++17",
        f"-I{FOLDER}",
        f"-DOMNIHVD_WIDTH={width}",
        f"-DOMNIHVD_FLOAT={int(is_float)}",
        f"-DOMNIHVD_BLOCK={block_size}",
        f"-DOMNIHVD_SOURCES={digest.hexdigest()[:16]}",
    )


@functools.cache
def module(dtype: str, block_size: int) -> Any:
    """The cupy.RawModule with the functions `compact` and `scatter` of abi.cuh, for the current
    device. `module(...).get_function("compact").kernel.ptr` is the CUfunction of the driver API."""
    return cupy().RawModule(code=source(), options=options(dtype, block_size))


def cubin(dtype: str, block_size: int, arch: str) -> bytes:
    """The module as the driver's cuModuleLoadData takes it, for `arch` ("sm_90"). Needs no GPU."""
    return compile_cubin(dtype, block_size, arch)[0]


def compile_cubin(dtype: str, block_size: int, arch: str) -> tuple[bytes, str]:
    """The cubin, and what ptxas says of the functions' use of registers and memory."""
    cupy()
    from cupy.cuda import nvrtc

    program = nvrtc.createProgram(source(), "kernels.cu", [], [])
    try:
        flags = [*options(dtype, block_size), f"-arch={arch}", "-Xptxas=-v"]
        try:
            nvrtc.compileProgram(program, flags)
        except nvrtc.NVRTCError as error:
            log = nvrtc.getProgramLog(program)
            raise RuntimeError(f"cannot compile kernels.cu for {arch}: {error}\n{log}") from error
        # CuPy takes the last byte for the end of a string.
        return nvrtc.getCUBIN(program) + b"\0", nvrtc.getProgramLog(program)
    finally:
        nvrtc.destroyProgram(program)
