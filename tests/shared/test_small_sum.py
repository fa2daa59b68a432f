"""Small sums over shared memory, in the caller's thread. A rank that fails:
tests/session/test_failures.py."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _engine_tests import shared
from groups import all_well, in_threads, processes

from omnihvd.engine import EngineError, session

MOST = 256 << 10  # bytes of a small sum
# Sums of up to four ranks are exact in each dtype, or wrap around as NumPy's.
PERIODS = {"float16": 61, "bfloat16": 7}


def _part(rank: int, count: int, dtype: str) -> np.ndarray:
    """Values unique per rank and index, up to a period for halves."""
    return _stored((np.arange(count) % PERIODS.get(dtype, count + 1)) * 8 + rank + 1, dtype)


def _total(size: int, count: int, dtype: str) -> np.ndarray:
    index = np.arange(count) % PERIODS.get(dtype, count + 1)
    return _stored(index * 8 * size + size * (size + 1) // 2, dtype)


def _stored(values: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "bfloat16":  # NumPy has no such dtype: a float32's upper half
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(dtype)


def _width(dtype: str) -> int:
    return 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize


def _counts(size: int, dtype: str) -> list[int]:
    """Around cache lines, pieces, the largest sum that each rank adds whole, and the largest."""
    edges = [64, 8 << 10, (64 << 10) // size // 64 * 64, MOST]
    counts = {0, 1, 2}
    for edge in edges:
        elements = edge // _width(dtype)
        counts |= {elements - 1, elements, elements + 1}
    return sorted(count for count in counts if count * _width(dtype) <= MOST)


@pytest.mark.parametrize("dtype", session.dtypes)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_sums(size: int, dtype: str) -> None:
    def work(rank: int, group: Any) -> None:
        for count in _counts(size, dtype):
            mine, expected = _part(rank, count, dtype), _total(size, count, dtype)
            out = np.full_like(mine, 99)
            group.allreduce(mine, out, dtype)
            np.testing.assert_array_equal(out, expected)
            np.testing.assert_array_equal(mine, _part(rank, count, dtype))
            group.allreduce(mine, mine, dtype)  # in place
            np.testing.assert_array_equal(mine, expected)

    all_well(in_threads(size, work, "small"))


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_all_ranks_get_the_same_bits(size: int, dtype: str) -> None:
    """The sum of these numbers depends on the order, that of the ranks. Half precision is added in
    float32."""
    counts = [1, 1000, 8200, MOST // _width(dtype)]

    def part(rank: int, count: int) -> np.ndarray:
        return (np.sin(np.arange(count) * 1.1 + rank) * 10.0 ** (rank % 3)).astype(dtype)

    def work(rank: int, group: Any) -> list[bytes]:
        sums = [part(rank, count) for count in counts]
        for tensor in sums:
            group.allreduce(tensor, tensor)
        return [tensor.tobytes() for tensor in sums]

    results = all_well(in_threads(size, work, "small"))
    for i, count in enumerate(counts):
        expected = part(0, count).astype(np.float32)
        for rank in range(1, size):
            expected = expected + part(rank, count).astype(np.float32)
        assert {result[i] for result in results} == {expected.astype(dtype).tobytes()}


def _rounds(rank: int, size: int, group: Any, pipe: Any) -> None:
    """Ranks come early and late in turn; each value tells the round."""
    for i in range(400):
        count = (1, 37, 5000, 30_000)[i % 4]
        tensor = np.arange(count, dtype=np.float64) * size + rank + i
        if i % 50 == rank:
            pipe.poll(0.002)
        group.allreduce(tensor, tensor)
        expected = np.arange(count) * size * size + size * (size - 1) / 2 + i * size
        np.testing.assert_array_equal(
            tensor[:: max(1, count // 9)], expected[:: max(1, count // 9)]
        )
        np.testing.assert_array_equal(tensor[-1], expected[-1])
        if i % 7 == 0:
            group.pass_by(count + 1, "float64")


@pytest.mark.parametrize("size", [2, 3, 4])
def test_between_processes(size: int) -> None:
    with processes(size, _rounds, "small") as ranks:
        ranks.gather()
        for rank in range(size):
            ranks.expect(rank, "done")


@pytest.mark.parametrize(
    ("count", "dtype", "said"),
    [(999, "float32", "999 float32"), (1000, "int32", "1000 int32"), (1001, "int8", "1001 int8")],
)
def test_ranks_that_differ_are_named(count: int, dtype: str, said: str) -> None:
    def work(rank: int, group: Any) -> None:
        x = np.ones(1000, np.float32) if rank != 1 else np.ones(count, dtype)
        group.allreduce(x, x)

    for result in in_threads(3, work, "small"):
        assert isinstance(result, EngineError), result
        assert "the ranks disagree about an allreduce: rank " in str(result)
        assert "1000 float32" in str(result) and said in str(result)


@pytest.mark.parametrize("first", [0, 1])
def test_a_rank_whose_sum_is_large_is_named(first: int) -> None:
    """The rank that comes first is told, and the other one, too."""

    def work(rank: int, group: Any) -> None:
        x = np.ones(1000, np.float32)
        group.allreduce(x, x)
        if rank != first:
            time.sleep(0.5)
        if rank == 1:
            group.pass_by(100_000, "float64")
            time.sleep(1)  # as long as the large sum waits for the other rank
        group.allreduce(x, x)

    for result in in_threads(2, work, "small"):
        assert isinstance(result, EngineError), result
        assert "the ranks disagree about an allreduce: rank " in str(result)
        assert "1000 float32" in str(result) and "100000 float64" in str(result)


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ([([0, 1], 0), ([0, 1], 0)], True),
        ([([0, 1], 0), ([0, 1], 0), ([0, 1], 0)], False),
        ([([0], 0), ([0], 0)], False),  # pinned to one core
        ([([0, 1], 0), ([0], 0)], True),  # the first must yield core 0
        ([([0, 1], 0), ([0, 2], 0), ([0], 0), ([1, 2], 0)], False),
        ([([0, 1], 1.5), ([0, 1], 0)], False),  # a cgroup's limit
        ([([0, 1], 2.0), ([0, 1], 2.0)], True),
        ([([0, 1], 1.0), ([0, 1], 1.0)], False),
    ],
)
def test_a_core_for_each_rank(ranks: list[tuple[list[int], float]], expected: bool) -> None:
    assert shared.has_core_each(ranks) == expected


def test_the_cores_are_those_that_this_thread_may_use() -> None:
    mine = os.sched_getaffinity(0)
    try:
        for cores in (mine, {min(mine)}):
            os.sched_setaffinity(0, cores)
            assert {*shared.cores_here()} == cores
    finally:
        os.sched_setaffinity(0, mine)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 0),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "150000 100000"}, 1.5),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "max 100000"}, 0),
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/b/cpu.max": "300000 100000",
                "sys/fs/cgroup/a/cpu.max": "100000 50000",
            },
            2,
        ),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "50000 100000"}, 0.5),
        (
            {
                "proc/self/cgroup": "5:memory:/x\n4:cpu,cpuacct:/x\n",
                "sys/fs/cgroup/cpu/x/cpu.cfs_quota_us": "250000",
                "sys/fs/cgroup/cpu/x/cpu.cfs_period_us": "100000",
            },
            2.5,
        ),
        (
            {
                "proc/self/cgroup": "4:cpu,cpuacct:/x\n",
                "sys/fs/cgroup/cpu/x/cpu.cfs_quota_us": "-1",
                "sys/fs/cgroup/cpu/x/cpu.cfs_period_us": "100000",
            },
            0,
        ),
        (  # files that are half there say nothing
            {
                "proc/self/cgroup": "4:cpu,cpuacct:/x/y\n",
                "sys/fs/cgroup/cpu/x/y/cpu.cfs_quota_us": "250000",
                "sys/fs/cgroup/cpu/x/y/cpu.cfs_period_us": "100000",
                "sys/fs/cgroup/cpu/x/cpu.cfs_period_us": "100000",
            },
            2.5,
        ),
        (
            {
                "proc/self/cgroup": "4:cpu,cpuacct:/x\n",
                "sys/fs/cgroup/cpu/x/cpu.cfs_quota_us": "250000",
            },
            0,
        ),
    ],
)
def test_limits_of_cgroups(files: dict[str, str], expected: float, tmp_path: Path) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    assert shared.cpu_limit(str(tmp_path)) == expected


def test_a_thread_that_flushes_subnormal_numbers_gets_the_same_sums() -> None:
    torch = pytest.importorskip("torch")
    given = np.full(64, 1e-40, np.float32)

    def work(rank: int, group: Any) -> bytes:
        torch.set_flush_denormal(rank == 1)
        x = given.copy()
        group.allreduce(x, x)
        return x.tobytes()

    assert all_well(in_threads(2, work, "small")) == [(2 * given).tobytes()] * 2


def test_negative_zeros_are_added_as_they_are() -> None:
    """README: blocks of zeros alone become +0.0, and here nobody looks for those."""

    def work(rank: int, group: Any) -> None:
        x = np.full(100, -0.0, np.float32)
        group.allreduce(x, x)
        assert np.signbit(x).all()

    all_well(in_threads(2, work, "small"))
