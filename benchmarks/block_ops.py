"""Speed of the block operations: GB/s per operation, dtype and implementation.

    python benchmarks/block_ops.py [--megabytes M] [--block-size N] [--density D]

Each operation processes a tensor of `--megabytes` block by block, as the engine does. The figure is
bytes of the dense tensor over the least processor time of several runs; other bytes that the
operation reads and writes do not count. `--density` is the share of non-zero elements, spread at
random. The scan for non-zero blocks (inspect) is measured on an all-zero tensor, where it reads
everything, and on a dense one, where it reads only the front of each block.

For comparison, the memory-read speed is the C library's memchr over the same all-zero tensor,
looking for a byte that does not occur.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).parents[1] / "build" / "tests"))
from _engine_tests import protocol

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
    """The least processor time of as many runs as fit into `budget` seconds, of three at least."""
    run()
    best, spent, runs = float("inf"), 0.0, 0
    while spent < budget or runs < 3:
        start = time.thread_time()  # unlike wall time, leaves out other programs' turns
        run()
        seconds = time.thread_time() - start
        best, spent, runs = min(best, seconds), spent + seconds, runs + 1
    return best


def memory_read_speed(zeros: np.ndarray) -> float:
    """Bytes a second at which this core reads an all-zero array."""
    memchr = ctypes.CDLL(None).memchr
    memchr.restype = ctypes.c_void_p
    memchr.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
    return zeros.nbytes / best_seconds(lambda: memchr(zeros.ctypes.data, 1, zeros.nbytes))


def tensor_of(dtype: str, elements: int, density: float) -> np.ndarray:
    """A tensor with a few values in a share `density` of its elements, drawn at random."""
    draw = np.random.default_rng(1)
    # Small integers as bits of any dtype are values that are not zero.
    values = draw.integers(1, 100, elements, dtype=np.uint8).astype(DTYPES[dtype])
    values[draw.random(elements, dtype=np.float32) >= density] = 0
    return values


class Buffers:
    """The data of all implementations, at the same addresses."""

    def __init__(self, dtype: str, size: int, block: int, density: float) -> None:
        elements = size // np.dtype(DTYPES[dtype]).itemsize
        self.tensor = tensor_of(dtype, elements, density)
        self.zeros, self.dense = tensor_of(dtype, elements, 0), tensor_of(dtype, elements, 1)
        self.sums = np.ones(elements, SUMS.get(dtype, DTYPES[dtype]))
        self.room = np.ones(size + elements // 8 + elements // block + 1, np.uint8)
        self.packed = self.room[: protocol.BlockOps(dtype).pack(self.tensor, self.room, block)]
        self.out = np.ones_like(self.tensor)


def operations(ops: protocol.BlockOps, on: Buffers, block: int) -> dict[str, Callable[[], object]]:
    return {
        "inspect zeros": lambda: ops.inspect(on.zeros, block),
        "inspect dense": lambda: ops.inspect(on.dense, block),
        "count_nonzero": lambda: ops.count_nonzero(on.tensor, block),
        "pack": lambda: ops.pack(on.tensor, on.room, block),
        "unpack": lambda: ops.unpack(on.packed, on.out, block),
        "store": lambda: ops.store(on.sums, on.tensor, block),
        "add": lambda: ops.add(on.sums, on.tensor, block),
        "store_packed": lambda: ops.store_packed(on.sums, on.packed, block),
        "add_packed": lambda: ops.add_packed(on.sums, on.packed, block),
        "finish": lambda: ops.finish(on.out, on.sums, block),
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
        f"the engine uses {protocol.block_ops_implementation()}\n"
    )
    print(f"{'dtype':9} {'operation':14}" + "".join(f"{i:>10}" for i in options.implementations))
    for dtype in options.dtypes:
        buffers = Buffers(dtype, size, options.block_size, options.density)
        columns = [
            operations(protocol.BlockOps(dtype, i), buffers, options.block_size)
            for i in options.implementations
        ]
        read = memory_read_speed(buffers.zeros) / 1e9
        print(f"{dtype:9} {'memory read':14}{read:10.1f}", flush=True)
        for name in columns[0]:
            speeds = [size / best_seconds(column[name]) / 1e9 for column in columns]
            print(f"{dtype:9} {name:14}" + "".join(f"{s:10.1f}" for s in speeds), flush=True)


if __name__ == "__main__":
    main()
