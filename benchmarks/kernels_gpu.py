"""Speed of find-and-compact on a GPU, against a device-to-device copy of the same tensor.

    python benchmarks/kernels_gpu.py [--megabytes 100 1000] [--densities ...] [--json FILE]

A density is the share of blocks that are not zero, drawn at random. A figure is the bytes that have
to move, over the time: the tensor once (compact), once and once more (copy), and what is written of
blocks, records and bitmap. `of copy` is compact's figure over copy's. Both are timed on the device,
ten in a CUDA graph, so that the host's launches do not count; the clearing of compact's counters
does. The time is the median of the samples, which are in the JSON, with the device and the date.

`scatter` is the time to write all blocks back, `to host` that to copy them to pinned memory of the
host, on the host's clock.

A second table has the codecs, on dense float32: encode and decode, and `add`, which decodes and
adds what 8 ranks have sent of an eighth of the tensor each. Bytes are those of the tensor, or of
what is written of it, and of the codes.

A third has block_topk at 5%, with error feedback, on dense float32: `top` is all of it by the
kernels, `none` the same where nothing is chosen or sent, and `operators` the same as `top` by those
of PyTorch, one launched after the other. Bytes: the gradient and the rest are read and written, but
for the rest of what is sent, which is read and written twice.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from benchmarks.gpu_times import REPEATS, SAMPLES, graph_of, us, usable_gpu  # noqa: E402
from omnihvd import engine, kernels  # noqa: E402

RANKS = 8  # of `add`
RATIO = 0.05  # of block_topk
CODECS = {
    "natural": ("natural", 0),
    "qsgd8": ("qsgd", 8),
    "qsgd4": ("qsgd", 4),
    "qsgd2": ("qsgd", 2),
    "int8": ("int", 8),
    "terngrad": ("terngrad", 0),
    "sign": ("sign", 0),
    "one_bit": ("one_bit", 0),
}
DTYPES = ("float16", "float32", "float64", "int8", "int32", "int64")


def samples(cupy: Any, stream: Any, work: Callable[[], object]) -> list[float]:
    """Seconds on the device of one `work`, which must only queue on the stream."""
    return [time / 1e6 / REPEATS for time in us(cupy, stream, graph_of(stream, work))]


def tensor_of(cupy: Any, dtype: str, elements: int, block_size: int, density: float) -> Any:
    keep = np.random.default_rng(1).random(-(-elements // block_size)) < density
    tensor = cupy.repeat(cupy.asarray(keep), block_size)[:elements].astype(dtype)
    tensor *= cupy.arange(elements, dtype=np.int64).astype(np.int8).astype(dtype) % 100 + 1
    return tensor


def measure(cupy: Any, megabytes: int, density: float, dtype: str, block_size: int) -> Any:
    stream, staging = cupy.cuda.Stream(non_blocking=True), kernels.Staging()
    with stream:
        elements = megabytes * 10**6 // np.dtype(dtype).itemsize
        tensor = tensor_of(cupy, dtype, elements, block_size, density)
        out = cupy.empty_like(tensor)

        def copy() -> None:
            out.data.copy_from_device_async(tensor.data, tensor.nbytes, stream)

        def compact() -> kernels.Blocks:
            return kernels.compact(tensor, block_size, staging=staging)

        seconds = {name.__name__: samples(cupy, stream, name) for name in (copy, compact)}
        blocks = compact()
        written = blocks.data.nbytes + blocks.records.nbytes + blocks.bitmap.nbytes
        seconds["scatter"] = samples(cupy, stream, lambda: kernels.scatter(blocks, out))
        seconds["to_host"] = []
        for _ in range(6):
            begin = time.perf_counter()
            blocks.to_host()
            seconds["to_host"].append(time.perf_counter() - begin)
        del seconds["to_host"][0]  # pins the memory
        return {
            "megabytes": megabytes,
            "density": density,
            "bytes": {"copy": 2 * tensor.nbytes, "compact": tensor.nbytes + written},
            "seconds": seconds,
        }


def measure_codec(cupy: Any, megabytes: int, name: str, block_size: int) -> Any:
    stream, coder = cupy.cuda.Stream(non_blocking=True), kernels.Coder(block_size)
    coding = engine.codec.Codec(*CODECS[name]).coding()
    with stream:
        elements = megabytes * 10**6 // 4 // (RANKS * block_size) * (RANKS * block_size)
        tensor = cupy.random.standard_normal(elements, dtype=np.float32)
        out, own = cupy.empty_like(tensor), elements // RANKS
        blocks = own // block_size
        parcels = cupy.empty(RANKS * coder.parcel_bytes(coding, blocks), np.uint8)

        def encode() -> None:
            coder.encode(tensor, parcels, coding, blocks, seed=1, who=0)

        def decode() -> None:
            coder.decode(parcels, out, coding, blocks, seed=1)

        def add() -> None:
            coder.decode(parcels, out[:own], coding, blocks, seed=1, count=RANKS)

        return {
            "megabytes": megabytes,
            "codec": name,
            "bytes": {
                "encode": tensor.nbytes + parcels.nbytes,
                "decode": tensor.nbytes + parcels.nbytes,
                "add": 4 * own + parcels.nbytes,
            },
            "seconds": {w.__name__: samples(cupy, stream, w) for w in (encode, decode, add)},
        }


def measure_sparsify(cupy: Any, megabytes: int, block_size: int) -> Any:
    stream, kernel = cupy.cuda.Stream(non_blocking=True), kernels.Sparsifier("float32", block_size)
    with stream:
        elements = megabytes * 10**6 // 4
        blocks = -(-elements // block_size)
        # Sent and rest add up to the same again: each repetition does the same.
        gradient = cupy.random.standard_normal(elements, dtype=np.float32)
        rest, norms = cupy.zeros_like(gradient), cupy.empty(blocks, np.float32)
        keep, largest = cupy.empty(blocks, np.uint8), max(1, int(RATIO * blocks))

        def none() -> None:
            kernel.split(gradient, norms, rest=rest)

        def top() -> None:
            kernel.split(gradient, norms, keep, largest=largest, rest=rest)

        seconds = {"top": samples(cupy, stream, top)}
        nbytes = {"none": 4 * gradient.nbytes, "top": int((4 + 2 * RATIO) * gradient.nbytes)}
        rest += gradient
        gradient[:] = 0
        seconds["none"] = samples(cupy, stream, none)
    seconds["operators"] = operator_samples(elements, block_size)
    return {"megabytes": megabytes, "ratio": RATIO, "bytes": nbytes, "seconds": seconds}


def operator_samples(elements: int, block_size: int) -> list[float]:
    """Seconds of a step of block_topk by PyTorch's operators; none without PyTorch for CUDA."""
    try:
        import torch
    except ImportError:
        return []
    if not torch.cuda.is_available():
        return []
    from omnihvd.compression import block_topk, torch_cuda, torch_ops
    from omnihvd.compression.split import ParameterState, split_by

    compressor, state, seconds = block_topk(RATIO, block_size), ParameterState("p"), []
    gradient = torch.randn(elements, device="cuda")
    with mock.patch.object(torch_cuda, "sparsifier", lambda *_: None):
        for _ in range(SAMPLES + 2):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for _ in range(REPEATS):
                split_by(torch_ops, compressor, gradient, state)
            end.record()
            end.synchronize()
            seconds.append(start.elapsed_time(end) / 1e3 / REPEATS)
    return seconds[2:]


def row(result: Any, names: tuple[str, ...]) -> str:
    took = {name: statistics.median(result["seconds"][name]) for name in names}
    speed = {name: result["bytes"][name] / took[name] / 1e9 for name in names}
    return " ".join(f"{took[name] * 1e6:6.0f} us {speed[name]:4.0f} GB/s" for name in names)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--megabytes", type=int, nargs="+", default=[100, 1000])
    parser.add_argument(
        "--densities", type=float, nargs="+", default=[0.001, 0.01, 0.1, 0.2, 0.5, 1.0]
    )
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--block-size", type=int, choices=kernels.BLOCK_SIZES, default=256)
    parser.add_argument("--json", type=Path, help="write the results, with raw samples, here")
    args = parser.parse_args()
    cupy, name = usable_gpu()

    date = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    print(f"{name}, {date}, {args.dtype}, blocks of {args.block_size} elements")
    print(f"{'MB':>6} {'density':>8} {'copy':>16} {'compact':>16} {'of copy':>8} "
          f"{'scatter':>9} {'to host':>9}")  # fmt: skip
    results = []
    for megabytes in args.megabytes:
        for density in args.densities:
            result = measure(cupy, megabytes, density, args.dtype, args.block_size)
            results.append(result)
            took = {key: statistics.median(value) for key, value in result["seconds"].items()}
            speed = {key: result["bytes"][key] / took[key] for key in ("copy", "compact")}
            print(
                f"{megabytes:6} {density:8} {row(result, ('copy', 'compact'))}"
                + f" {speed['compact'] / speed['copy']:8.2f}"
                + f" {took['scatter'] * 1e6:6.0f} us {took['to_host'] * 1e6:6.0f} us"
            )
    print(f"{'MB':>6} {'codec':>8} {'encode':>19} {'decode':>19} {f'add {RANKS}':>19}")
    codecs = []
    for megabytes in args.megabytes:
        for name in CODECS:
            result = measure_codec(cupy, megabytes, name, args.block_size)
            codecs.append(result)
            print(f"{megabytes:6} {name:>8} {row(result, ('encode', 'decode', 'add'))}")
    print(f"{'MB':>6} {'top':>19} {'none':>19} {'operators':>10}")
    sparsifiers = []
    for megabytes in args.megabytes:
        result = measure_sparsify(cupy, megabytes, args.block_size)
        sparsifiers.append(result)
        operators = result["seconds"]["operators"] or [math.nan]
        print(f"{megabytes:6} {row(result, ('top', 'none'))}"
              f" {statistics.median(operators) * 1e6:7.0f} us")  # fmt: skip
    if args.json:
        report = {
            "device": name,
            "date": date,
            "cuda_driver": cupy.cuda.runtime.driverGetVersion(),
            "dtype": args.dtype,
            "block_size": args.block_size,
            "repeats_a_sample": REPEATS,
            "results": results,
            "codecs": codecs,
            "sparsifiers": sparsifiers,
        }
        args.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
