"""Speed of the block operations: GB/s per operation, dtype and implementation.

    python benchmarks/block_ops.py [--elements BYTES] [--block-size N] [--density D]

A tensor of `--megabytes` goes through each operation block by block, as the engine does it; the
figure is bytes of the dense tensor over the best of several runs, whatever else the operation
reads and writes. `--density` is the share of non-zero elements, spread at random, for counting,
packing and unpacking. The scan for non-zero blocks (inspect) is measured on an all-zero tensor,
which it has to read to the end, and on a dense one, of which it sees the front of each block.

Beside it stands the memory-read speed: the C library's memchr over the same zero bytes, looking for
a byte that is not there.
"""

from __future__ import annotations

import argparse
import ctypes
import time
from collections.abc import Callable

import numpy as np

from omnihvd._engine import protocol

DTYPES = {
    "float16": np.float16,
    "bfloat16": np.uint16,
    "float32": np.float32,
    "float64": np.float64,
    "int8": np.int8,
    "uint8": np.uint8,
    "int32": np.int32,
    "int64": np.int64,
}
SUMS = {"float16": np.float32, "bfloat16": np.float32}


def best_seconds(run: Callable[[], object], budget: float = 0.3) -> float:
    """The shortest of as many runs as fit into `budget` seconds, of three at least."""
    run()
    best, spent, runs = float("inf"), 0.0, 0
    while spent < budget or runs < 3:
        start = time.perf_counter()
        run()
        seconds = time.perf_counter() - start
        best, spent, runs = min(best, seconds), spent + seconds, runs + 1
    return best


def memory_read_speed(size: int) -> float:
    """Bytes a second at which this core reads `size` bytes."""
    memchr = ctypes.CDLL(None).memchr
    memchr.restype = ctypes.c_void_p
    memchr.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
    data = np.zeros(size, np.uint8)
    data.fill(0)  # else all pages are the one zero page
    return size / best_seconds(lambda: memchr(data.ctypes.data, 1, size), budget=1)


def tensor_of(dtype: str, elements: int, density: float) -> np.ndarray:
    """A tensor whose share `density` of elements, drawn at random, is one of a few values."""
    draw = np.random.default_rng(1)
    # Small integers as bits of any dtype are values that are not zero.
    values = draw.integers(1, 100, elements, dtype=np.uint8).astype(DTYPES[dtype])
    values[draw.random(elements, dtype=np.float32) >= density] = 0
    return values


def operations(
    dtype: str, implementation: str, size: int, block: int, density: float
) -> dict[str, Callable[[], object]]:
    ops = protocol.BlockOps(dtype, implementation)
    elements = size // np.dtype(DTYPES[dtype]).itemsize
    tensor = tensor_of(dtype, elements, density)
    zeros, dense = tensor_of(dtype, elements, 0), tensor_of(dtype, elements, 1)
    sums = np.ones(elements, SUMS.get(dtype, DTYPES[dtype]))
    room = np.ones(size + elements // 8 + elements // block + 1, np.uint8)
    packed = room[: ops.pack(tensor, room, block)]
    out = np.ones_like(tensor)
    return {
        "inspect zeros": lambda: ops.inspect(zeros, block),
        "inspect dense": lambda: ops.inspect(dense, block),
        "count_nonzero": lambda: ops.count_nonzero(tensor, block),
        "pack": lambda: ops.pack(tensor, room, block),
        "unpack": lambda: ops.unpack(packed, out, block),
        "store": lambda: ops.store(sums, tensor, block),
        "add": lambda: ops.add(sums, tensor, block),
        "store_packed": lambda: ops.store_packed(sums, packed, block),
        "add_packed": lambda: ops.add_packed(sums, packed, block),
        "finish": lambda: ops.finish(out, sums, block),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--megabytes", type=float, default=100, help="size of the dense tensor")
    parser.add_argument("--block-size", type=int, default=256, help="elements in a block")
    parser.add_argument("--density", type=float, default=0.05, help="share of non-zero elements")
    parser.add_argument("--dtypes", nargs="+", default=list(DTYPES), choices=DTYPES)
    parser.add_argument(
        "--implementations", nargs="+", default=protocol.block_ops_implementations()
    )
    options = parser.parse_args()

    size = int(options.megabytes * 1e6) // 8 * 8
    print(
        f"{size / 1e6:g} MB, blocks of {options.block_size} elements, density {options.density:g}; "
        f"the engine uses {protocol.block_ops_implementation()}"
    )
    print(f"memory read (memchr): {memory_read_speed(size) / 1e9:.1f} GB/s\n")
    print(f"{'dtype':9} {'operation':14}" + "".join(f"{i:>10}" for i in options.implementations))
    for dtype in options.dtypes:
        columns = [
            operations(dtype, i, size, options.block_size, options.density)
            for i in options.implementations
        ]
        for name in columns[0]:
            speeds = [size / best_seconds(column[name]) / 1e9 for column in columns]
            print(f"{dtype:9} {name:14}" + "".join(f"{s:10.1f}" for s in speeds), flush=True)


if __name__ == "__main__":
    main()
