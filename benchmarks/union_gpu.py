"""Speed of the kernels of a sum on the union, on one GPU, in one process, without NCCL's part.

    python benchmarks/union_gpu.py [--megabytes 1 25 100] [--densities 0.01 0.1 0.3] [--json FILE]

Each row has a tensor of float32 and a share of its blocks, which are not zero, and are the union.
`copy` copies the tensor on the device; mark reads it once. gather and spread move the union's
blocks. `rest` finds nothing to do. `chain` is all of them, one after the other: in a CUDA graph, as
the columns before it, and launched, where the host's launches count.

The second table has the launched chain beside matrix products of bfloat16 that fill the GPU, on
streams of two priorities: how long do dependent kernels wait for multiprocessors? Figures are
medians, in microseconds. Each row is printed, and the file written, once it is measured.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from benchmarks.gpu_times import REPEATS, SAMPLES, graph_of, once, us, usable_gpu  # noqa: E402
from omnihvd import kernels  # noqa: E402

# As in kernels/abi.cuh.
THREADS, WORD_CTAS, UNITE_CTAS = 128, 2048, 1024
UNION = np.dtype(
    [("addresses", "<u8", 3), *((n, "<u8") for n in ("words", "per", "first", "room"))]
)
REST = np.dtype([("asked", "<u4"), ("answered", "<u4"), ("blocks", "<u8")]
                + [(name, "<u4") for name in ("dtype", "failed", "alone", "lost")])  # fmt: skip
SEEN = np.dtype([(name, "<u8") for name in ("number", "united", "own", "trailer")])
CHUNK_WORDS = 128  # union_steps.cc
PRODUCTS = 40
u32, u64 = np.uint32, np.uint64


class Chain:
    """The kernels that sum `tensor` on `stream`. The tensor's raw bits may stand for `dtype`. In a
    job NCCL makes `everything` of the ranks' marks."""

    def __init__(self, tensor: Any, dtype: str, block_size: int, stream: Any, window: int = 1):
        """window: blocks that `rest` has room for."""
        import cupy

        module = kernels.module(dtype, block_size)
        self.functions = {
            name: module.get_function(name)
            for name in ("mark", "unite", "gather", "spread", "rest")
        }
        self.tensor, self.stream, self.window = tensor, stream, window
        self.blocks = -(-tensor.size // block_size)
        self.words = -(-self.blocks // 32)
        self.chunks = -(-self.words // CHUNK_WORDS)

        def zeros(n: int, dtype: Any) -> Any:
            return cupy.asarray(np.zeros(n, dtype))

        self.own, self.everything = (zeros(32 * self.words + 4, np.uint8) for _ in "oe")
        self.united, self.prefix, self.arrived = (
            zeros(n, u32) for n in (self.words, self.words, 1)
        )
        self.counts, self.starts = zeros(2 * self.chunks, u32), zeros(self.chunks + 1, u64)
        self.out = zeros(tensor.size, tensor.dtype)
        self.buffer = zeros(self.blocks * block_size, tensor.dtype)
        window_bytes = window * block_size * tensor.dtype.itemsize
        self.pinned = cupy.cuda.alloc_pinned_memory(512 + window_bytes)
        host = np.frombuffer(self.pinned, np.uint8, 512 + window_bytes)
        host[:] = 0
        self.rest_words, self.seen = (host[i : i + 32].view(t) for i, t in ((0, REST), (256, SEEN)))
        self.windows = host[512:].view(tensor.dtype)

    def _run(self, name: str, grid: int, *args: Any) -> None:
        with self.stream:
            self.functions[name]((grid,), (THREADS,), args)

    def _on_words(self, name: str, *args: Any) -> None:
        self._run(name, min(WORD_CTAS, -(-self.words // 4)), *args)

    def _union(self, first: int, room: int) -> np.ndarray:
        """By value, as CuPy passes arrays of one element."""
        view = np.zeros((), UNION)
        view["addresses"] = [a.data.ptr for a in (self.united, self.prefix, self.starts)]
        view["words"], view["per"] = self.words, CHUNK_WORDS
        view["first"], view["room"] = first, room
        return view

    def mark(self, trailer: int = 0) -> None:
        marks, address = u64(self.own.data.ptr), u64(self.tensor.data.ptr)
        self._on_words("mark", address, u64(self.tensor.size), u32(0), u32(trailer), marks)

    def unite(self, number: int = 1) -> None:
        written = (self.united, self.prefix, self.counts, self.arrived, self.starts)
        self._run(
            "unite", min(UNITE_CTAS, self.chunks), u64(self.own.data.ptr),
            u64(self.everything.data.ptr), u64(self.words), u64(CHUNK_WORDS),
            *(u64(a.data.ptr) for a in written), u64(self.seen.ctypes.data), u64(number),
        )  # fmt: skip

    def gather(self, first: int, room: int) -> None:
        address, buffer = u64(self.tensor.data.ptr), u64(self.buffer.data.ptr)
        self._on_words("gather", address, u64(self.tensor.size), self._union(first, room), buffer)

    def spread(self, first: int, room: int, fill: bool = False) -> None:
        address, buffer = u64(self.out.data.ptr), u64(self.buffer.data.ptr)
        union, size = self._union(first, room), u64(self.out.size)
        self._on_words("spread", address, size, union, buffer, u32(fill))

    def rest(self, first: int, dtype: int = 0, factor: float = 1.0, bfloat16: bool = False) -> None:
        self._run(
            "rest", 1, u64(self.tensor.data.ptr), u64(self.out.data.ptr), u64(self.out.size),
            self._union(first, self.window), u64(self.rest_words.ctypes.data),
            u64(self.windows.ctypes.data), u32(dtype), np.float64(factor), u32(bfloat16),
        )  # fmt: skip

    def all(self, capacity: int) -> None:
        self.mark()
        self.unite()
        self.gather(0, capacity)
        self.spread(0, capacity)
        self.rest(capacity)


def chain_of(cupy: Any, megabytes: int, density: float, stream: Any) -> tuple[Chain, int]:
    """A chain that has marked its blocks, and the number of its union's."""
    elements = megabytes * 250_000
    keep = np.random.default_rng(1).random(-(-elements // 256)) < density
    values = np.repeat(keep, 256)[:elements].astype(np.float32)
    chain = Chain(cupy.asarray(values), "float32", 256, stream)
    cupy.cuda.Device().synchronize()
    chain.mark()
    stream.synchronize()
    chain.everything[:] = chain.own
    cupy.cuda.Device().synchronize()
    return chain, int(keep.sum())


def measure(cupy: Any, megabytes: int, density: float, stream: Any) -> dict[str, Any]:
    chain, union = chain_of(cupy, megabytes, density, stream)
    target = cupy.empty_like(chain.tensor)
    works: dict[str, Callable[[], object]] = {
        "copy": lambda: target.data.copy_from_device_async(
            chain.tensor.data, chain.tensor.nbytes, stream
        ),
        "mark": chain.mark,
        "unite": chain.unite,
        "gather": lambda: chain.gather(0, union),
        "spread": lambda: chain.spread(0, union),
        "rest": lambda: chain.rest(union),
        "chain": lambda: chain.all(union),
    }
    found = {}
    with stream:
        for name, work in works.items():
            times = us(cupy, stream, graph_of(stream, work))
            found[name] = [time / REPEATS for time in times]
        found["launched"] = us(cupy, stream, works["chain"])
    assert int(chain.seen["united"][0]) == union, "unite has counted other blocks"
    return {"megabytes": megabytes, "density": density, "us": found}


def beside_products(cupy: Any, megabytes: int, density: float, priority: int) -> dict[str, Any]:
    """The chain's times while products run, each product longer than a chain by far."""
    import torch

    stream = cupy.cuda.Stream(non_blocking=True, priority=priority)
    chain, union = chain_of(cupy, megabytes, density, stream)
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(a)
    torch.mm(a, a, out=out)
    torch.cuda.synchronize()
    alone, beside = us(cupy, stream, lambda: chain.all(union)), []
    for _ in range(SAMPLES):
        for _ in range(PRODUCTS):
            torch.mm(a, a, out=out)
        took = once(cupy, stream, lambda: chain.all(union))
        if not torch.cuda.current_stream().query():  # the products took longer
            beside.append(took)
        torch.cuda.synchronize()
    return {"megabytes": megabytes, "priority": priority, "us": {"alone": alone, "beside": beside}}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, nargs="+", default=[1, 25, 100])
    parser.add_argument("--densities", type=float, nargs="+", default=[0.01, 0.1, 0.3])
    parser.add_argument("--json", type=Path, help="write the results, with raw samples, here")
    args = parser.parse_args()
    cupy, name = usable_gpu()
    print(name, "float32, blocks of 256 elements, us")
    results: list[dict[str, Any]] = []

    def told(result: dict[str, Any], *words: object) -> None:
        results.append(result)
        medians = {name: statistics.median(t) for name, t in result["us"].items() if t}
        print(*words, *(f"{name} {time:.1f}" for name, time in medians.items()), flush=True)
        if args.json:
            args.json.write_text(json.dumps({"device": name, "results": results}, indent=1) + "\n")

    stream = cupy.cuda.Stream(non_blocking=True)
    for megabytes in args.megabytes:
        for density in args.densities:
            result = measure(cupy, megabytes, density, stream)
            told(result, f"{megabytes} MB, {density:.0%}:")
    for priority in (0, -5):
        result = beside_products(cupy, 25, 0.1, priority)
        told(result, f"25 MB, 10%, beside products, priority {priority}:")


if __name__ == "__main__":
    main()
