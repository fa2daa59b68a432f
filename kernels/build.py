"""Compiles the CUDA sources: one module for each element width, zero test and block size."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

FOLDER = Path(__file__).resolve().parent


def _width_and_zero(dtype: str) -> tuple[int, bool]:
    kind = dtype.rstrip("0123456789")
    return int(dtype[len(kind) :]) // 8, kind.endswith("float")


# As the engine's, by a test: width in bytes; whether the sign of zero counts for nothing.
_NAMES = "float16 bfloat16 float32 float64 int8 uint8 int32 int64"
DTYPES = {dtype: _width_and_zero(dtype) for dtype in _NAMES.split()}
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


def options(dtype: str, block_size: int) -> tuple[str, ...]:
    check(dtype, block_size)
    width, is_float = DTYPES[dtype]
    return (
        "-std=c++17",
        f"-I{FOLDER}",
        f"-DOMNIHVD_WIDTH={width}",
        f"-DOMNIHVD_FLOAT={int(is_float)}",
        f"-DOMNIHVD_BLOCK={block_size}",
    )


def module(
    dtype: str, block_size: int, source: str = "kernels.cu", cubin_file: Path | None = None
) -> Any:
    """CuPy's Module with the functions of `source`, for the current device, loaded once.

    cubin_file: compiled already; by default it is compiled now, which takes seconds. (Not by CuPy,
    which has denormal numbers flushed to zero.)"""
    return _loaded(dtype, block_size, source, cubin_file, cupy().cuda.Device().id)


@functools.cache
def _loaded(dtype: str, block_size: int, source: str, cubin_file: Path | None, _: int) -> Any:
    loaded = cupy().cuda.function.Module()
    if cubin_file is None:
        arch = f"sm_{cupy().cuda.Device().compute_capability}"
        loaded.load(cubin(dtype, block_size, arch, source))
    else:
        loaded.load_file(str(cubin_file))
    return loaded


def cubin(dtype: str, block_size: int, arch: str, source: str = "kernels.cu") -> bytes:
    """A module as the driver's cuModuleLoadData takes it, for `arch` ("sm_90"). Needs no GPU."""
    return compile_cubin(dtype, block_size, arch, source)[0]


def compile_cubin(
    dtype: str, block_size: int, arch: str, source: str = "kernels.cu"
) -> tuple[bytes, str]:
    """The cubin, and what ptxas says of the functions' use of registers and memory."""
    flags = (f"-arch={arch}", "-Xptxas=-v")
    # CuPy takes the last byte for the end of a string.
    return _compiled(
        dtype,
        block_size,
        flags,
        source,
        lambda nvrtc, program: (nvrtc.getCUBIN(program) + b"\0", nvrtc.getProgramLog(program)),
    )


def _compiled(
    dtype: str, block_size: int, flags: tuple[str, ...], source: str, take: Callable[..., Any]
) -> Any:
    cupy()
    from cupy.cuda import nvrtc

    program = nvrtc.createProgram((FOLDER / source).read_text(), source, [], [])
    try:
        try:
            nvrtc.compileProgram(program, [*options(dtype, block_size), *flags])
        except nvrtc.NVRTCError as error:
            log, arch = nvrtc.getProgramLog(program), flags[0].partition("=")[2]
            raise RuntimeError(f"cannot compile {source} for {arch}: {error}\n{log}") from error
        return take(nvrtc, program)
    finally:
        nvrtc.destroyProgram(program)
