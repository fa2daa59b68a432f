"""Builds the kernels for the CPU (emulation/) and calls them on NumPy arrays with guards."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from kernel_reference import FLOATS, RECORD, bits_of

SANITIZER = os.environ.get("OMNIHVD_TEST_KERNEL_SANITIZER")
# Some cases differ in their sizes alone: for races one of so many is enough.
FEW = slice(None, None, 5 if SANITIZER == "thread" else 1)
ROOT = Path(__file__).resolve().parents[2]
CCACHE = [found] if (found := shutil.which("ccache")) else []
GUARD = 0xA5
GUARD_BYTES = 64


class Memory:
    """`nbytes` bytes at an address that is `offset` more than a multiple of 16, between guards."""

    def __init__(self, nbytes: int, offset: int = 0) -> None:
        self._all = np.full(nbytes + 2 * GUARD_BYTES + 32, GUARD, np.uint8)
        self._first = GUARD_BYTES + (offset - self._all.ctypes.data - GUARD_BYTES) % 16
        self.bytes = self._all[self._first : self._first + nbytes]
        self.address = self._all.ctypes.data + self._first

    def check(self) -> None:
        assert (self._all[: self._first] == GUARD).all(), "written before the beginning"
        assert (self._all[self._first + len(self.bytes) :] == GUARD).all(), "written past the end"


class Scattered:
    """A tensor in pieces of the given numbers of elements, each with its guards, or in one piece.

    The first piece begins `misaligned` elements behind an aligned address, the others anywhere."""

    def __init__(
        self, tensor: np.ndarray, misaligned: int = 0, pieces: list[int] | None = None
    ) -> None:
        self.dtype = tensor.dtype
        self.size = len(tensor)
        counts = pieces if pieces is not None else [len(tensor)]
        assert sum(counts) == len(tensor)
        self.pieces = [
            Memory(count * tensor.itemsize, (misaligned + 3 * i) * tensor.itemsize)
            for i, count in enumerate(counts)
        ]
        ends = np.cumsum(counts, dtype=np.uint64)
        self.table = np.array([(p.address, e) for p, e in zip(self.pieces, ends)], dtype=np.uint64)
        for piece, end, count in zip(self.pieces, ends.tolist(), counts):
            piece.bytes[:] = tensor[end - count : end].view(np.uint8)
        self.arguments = (
            (self.pieces[0].address, self.size, None, 0)
            if pieces is None
            else (0, self.size, ctypes.c_void_p(self.table.ctypes.data), len(counts))
        )

    def values(self) -> np.ndarray:
        for piece in self.pieces:
            piece.check()
        return np.concatenate([piece.bytes for piece in self.pieces]).view(self.dtype)


@dataclass
class Compacted:
    totals: np.ndarray
    bitmap: np.ndarray
    records: np.ndarray
    data: np.ndarray


def library_of(
    source: str, dtype: str, block_size: int, folder: Path, flags: tuple[str, ...]
) -> ctypes.CDLL:
    """emulation/<source>.cc, compiled unless `folder` has it."""
    width, is_float = bits_of(dtype).itemsize, int(dtype in FLOATS)
    library = folder / f"{source}_{width}_{is_float}_{block_size}.so"
    if not library.exists():
        compiled = library.with_suffix(".o")
        command = [
            *CCACHE, "g++", "-c", "-std=c++17", "-O1", "-fPIC", "-fno-strict-aliasing",
            "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas", *flags,
            f"-I{ROOT / 'kernels'}", f"-I{ROOT / 'omnihvd' / 'csrc'}", f"-DOMNIHVD_WIDTH={width}",
            f"-DOMNIHVD_FLOAT={is_float}", f"-DOMNIHVD_BLOCK={block_size}",
            str(Path(__file__).parent / "emulation" / f"{source}.cc"), "-o", str(compiled),
        ]  # fmt: skip
        subprocess.run(command, check=True, timeout=100)
        # Kernels have names that libraries of other tests have, too: Horovod's, a "choose".
        link = ["g++", "-shared", "-Wl,-Bsymbolic", *flags, str(compiled), "-o", str(library)]
        subprocess.run(link, check=True, timeout=100)
    return ctypes.CDLL(str(library))


u64, u32, f32, f64 = ctypes.c_uint64, ctypes.c_uint32, ctypes.c_float, ctypes.c_double
pointer = ctypes.c_void_p


class Kernels:
    """One module of kernels, for one dtype and block size."""

    def __init__(self, dtype: str, block_size: int, folder: Path, flags: tuple[str, ...] = ()):
        self.width, self.block_size = bits_of(dtype).itemsize, block_size
        self._lib = library_of("run", dtype, block_size, folder, flags)
        self.library = Path(self._lib._name)
        tensor = [u64, u64, pointer, u32]
        for name, arguments in {
            "compact": [*tensor, u32, pointer, pointer, pointer, pointer, u64, u32],
            "scatter": [*tensor, pointer, pointer, pointer, u64, u32],
            "scale": [u64, u64, u64, f64, u32, u64, u32],
            "mark": [u64, u64, u32, u32, pointer, u64, u32],
            "unite": [pointer, pointer, u64, u64, *[pointer] * 6, u64, u64, u32],
            "gather": [u64, u64, pointer, pointer, u64, u32],
            "spread": [u64, u64, pointer, pointer, u32, u64, u32],
            "rest": [u64, u64, u64, pointer, pointer, u64, u32, f64, u32, u64, u32],
            "encode": [u64, u64, u64, u32, u32, u32, u32, u64, u32, pointer, u64, u32],
            "decode": [u64, u64, u32, u32, u32, u32, u32, pointer, u64, u32],
        }.items():
            kinds = {"scale": FLOATS, "encode": ["float32"], "decode": ["float32"]}
            if dtype in kinds.get(name, [dtype]):
                function = getattr(self._lib, f"run_{name}")
                function.argtypes, function.restype = arguments, ctypes.c_char_p
        self._lib.same_packing.restype = ctypes.c_bool
        self._lib.grid_of_compact.restype = self._lib.grid_of_scatter.restype = u64
        self._lib.grid_of_compact.argtypes = self._lib.grid_of_scatter.argtypes = [u64]
        self.same_packing = self._lib.same_packing
        self.grid_of_compact = self._lib.grid_of_compact
        self.grid_of_scatter = self._lib.grid_of_scatter

    def compact(self, tensor: Scattered, flags: int, seed: int, ctas: int = 1024) -> Compacted:
        """On at most `ctas` CTAs, which take turns over the tiles."""
        blocks = -(-tensor.size // self.block_size)
        data_bytes = -(-tensor.size * self.width // 128) * 128
        totals, bitmap = Memory(16), Memory(-(-blocks // 32) * 4)
        records, data = Memory(blocks * 16), Memory(data_bytes)
        totals.bytes[:] = bitmap.bytes[:] = 0
        failure = self._lib.run_compact(
            *tensor.arguments, flags, totals.address, bitmap.address, records.address,
            data.address, min(self.grid_of_compact(tensor.size), ctas), seed,
        )  # fmt: skip
        assert failure is None, failure
        for memory in (totals, bitmap, records, data):
            memory.check()
        return Compacted(
            totals.bytes.view(np.uint64), bitmap.bytes, records.bytes.view(RECORD), data.bytes
        )

    def scatter(
        self, tensor: Scattered, records: np.ndarray, data: np.ndarray, seed: int,
        ctas: int = 1024,
    ) -> None:  # fmt: skip
        """On at most `ctas` CTAs, which take turns over the records."""
        count = np.array([len(records)], np.uint64)
        failure = self._lib.run_scatter(
            *tensor.arguments, records.ctypes.data, count.ctypes.data, data.ctypes.data,
            min(self.grid_of_scatter(len(records)), ctas), seed,
        )  # fmt: skip
        assert failure is None, failure

    def scale(
        self, source: Scattered, target: Scattered, factor: float, bfloat16: bool = False
    ) -> None:
        self.run(
            "scale", source.arguments[0], target.arguments[0], source.size, factor, bfloat16, 2, 0
        )

    def run(self, name: str, *arguments: object) -> None:
        failure = getattr(self._lib, f"run_{name}")(*arguments)
        assert failure is None, failure

    def launch(self, name: str, grid: tuple[int], block: tuple[int], args: tuple) -> None:
        """As the driver would, with the arguments in the kernel's order."""
        if name == "compact":
            assert (*grid, *block) == (self.grid_of_compact(int(args[1])), 128)
            failure = self._lib.run_compact(*map(int, args), grid[0], 0)
        elif name == "mark":
            words = -(-int(args[1]) // (32 * self.block_size))
            assert (*grid, *block) == (min(-(-words // 4), 2048), 128)
            failure = self._lib.run_mark(*map(int, args), grid[0], 0)
        elif name in ("unite", "gather", "spread", "rest"):
            assert block == (128,)
            # A structure by value is an array of one element here.
            plain = (a.ctypes.data if isinstance(a, np.ndarray) else a.item() for a in args)
            failure = getattr(self._lib, f"run_{name}")(*plain, *grid, 0)
        elif name in ("encode", "decode"):
            assert block == (128,)
            failure = getattr(self._lib, f"run_{name}")(*map(int, args), grid[0], 0)
        else:
            count = ctypes.c_uint64.from_address(int(args[5])).value
            assert block == (256,)
            assert self.grid_of_scatter(count) <= grid[0] <= 1024
            failure = self._lib.run_scatter(*map(int, args), grid[0], 0)
        assert failure is None, failure


class SparsifyKernels:
    """The module of sparsify.cu, for gradients of one width, and one block size."""

    def __init__(self, dtype: str, block_size: int, folder: Path, flags: tuple[str, ...] = ()):
        self._lib = library_of("run_sparsify", dtype, block_size, folder, flags)
        for name, arguments in {
            "accumulate": [u64, u64, u32, u64, u64, f32, pointer],
            "above": [u64, u64, u32, u64, u64, f32, f32, pointer],
            "choose": [u64, u64, u32, pointer],
            "split": [u64, u64, u32, u64, u64, f32, pointer, f32, pointer, pointer],
        }.items():
            function = getattr(self._lib, f"run_{name}")
            function.argtypes, function.restype = [*arguments, u64, u32], ctypes.c_char_p

    def run(self, name: str, *arguments: object) -> None:
        """The kernel's arguments, the grid, and the seed of the threads' order."""
        failure = getattr(self._lib, f"run_{name}")(*arguments)
        assert failure is None, failure

    def launch(self, name: str, grid: tuple[int], block: tuple[int], args: tuple) -> None:
        """As the driver would."""
        assert block == (1024 if name == "choose" else 128,)
        assert grid[0] == 1 or name != "choose"
        self.run(name, *(arg.item() for arg in args), *grid, 0)
