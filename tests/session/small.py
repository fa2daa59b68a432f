"""All small sums must do this, over "small" memory and "direct" connections."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from groups import all_well, in_threads

from omnihvd.engine import EngineError

# Sums of up to four ranks are exact in each dtype, or wrap around as NumPy's.
PERIODS = {"float16": 61, "bfloat16": 7}


def part(rank: int, count: int, dtype: str) -> np.ndarray:
    """Values unique per rank and index, up to a period for halves."""
    return _stored((np.arange(count) % PERIODS.get(dtype, count + 1)) * 8 + rank + 1, dtype)


def total(size: int, count: int, dtype: str) -> np.ndarray:
    index = np.arange(count) % PERIODS.get(dtype, count + 1)
    return _stored(index * 8 * size + size * (size + 1) // 2, dtype)


def _stored(values: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "bfloat16":  # NumPy has no such dtype: a float32's upper half
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(dtype)


def width(dtype: str) -> int:
    return 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize


def counts_around(edges: list[int], dtype: str, most: int, counts: set[int]) -> list[int]:
    """These counts, and those around edges in bytes, of at most so many bytes."""
    for edge in edges:
        elements = edge // width(dtype)
        counts = counts | {elements - 1, elements, elements + 1}
    return sorted(count for count in counts if count * width(dtype) <= most)


def check_sums(transport: str, size: int, dtype: str, counts: list[int]) -> None:
    def work(rank: int, group: Any) -> None:
        for count in counts:
            mine, expected = part(rank, count, dtype), total(size, count, dtype)
            out = np.full_like(mine, 99)
            group.allreduce(mine, out, dtype)
            np.testing.assert_array_equal(out, expected)
            np.testing.assert_array_equal(mine, part(rank, count, dtype))
            group.allreduce(mine, mine, dtype)  # in place
            np.testing.assert_array_equal(mine, expected)

    all_well(in_threads(size, work, transport))


def check_bits(transport: str, size: int, dtype: str, most: int) -> None:
    """The sum of these numbers depends on the order, that of the ranks. Half precision is added in
    float32."""
    counts = [1, 1000, 8200, most // width(dtype)]

    def mine(rank: int, count: int) -> np.ndarray:
        return (np.sin(np.arange(count) * 1.1 + rank) * 10.0 ** (rank % 3)).astype(dtype)

    def work(rank: int, group: Any) -> list[bytes]:
        sums = [mine(rank, count) for count in counts]
        for tensor in sums:
            group.allreduce(tensor, tensor)
        return [tensor.tobytes() for tensor in sums]

    results = all_well(in_threads(size, work, transport))
    for i, count in enumerate(counts):
        expected = mine(0, count).astype(np.float32)
        for rank in range(1, size):
            expected = expected + mine(rank, count).astype(np.float32)
        assert {result[i] for result in results} == {expected.astype(dtype).tobytes()}


# Another sum than 1000 float32, as one rank makes it, and how a message names it.
OTHERS = [
    (999, "float32", "999 float32"),
    (1000, "int32", "1000 int32"),
    (1001, "int8", "1001 int8"),
]


def check_differ(transport: str, count: int, dtype: str, said: str) -> None:
    def work(rank: int, group: Any) -> None:
        x = np.ones(1000, np.float32) if rank != 1 else np.ones(count, dtype)
        group.allreduce(x, x)

    check_named(in_threads(3, work, transport), said)


def check_named(results: list[Any], said: str) -> None:
    for result in results:
        assert isinstance(result, EngineError), result
        assert "the ranks disagree about an allreduce: rank " in str(result)
        assert "1000 float32" in str(result) and said in str(result)


def rounds(
    times: int, largest: int, nap_s: float, rank: int, size: int, group: Any, pipe: Any
) -> None:
    """Ranks come early and late in turn; each value tells the round."""
    for i in range(times):
        count = (1, 37, 5000, largest)[i % 4]
        tensor = np.arange(count, dtype=np.float64) * size + rank + i
        if i % 50 == rank:
            time.sleep(nap_s)
        group.allreduce(tensor, tensor)
        expected = np.arange(count) * size * size + size * (size - 1) / 2 + i * size
        np.testing.assert_array_equal(tensor, expected)
        if i % 7 == 0:
            group.pass_by(count + 1, "float64")
