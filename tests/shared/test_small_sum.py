"""Small sums over shared memory, in the caller's thread. A rank that fails:
tests/session/test_failures.py."""

from __future__ import annotations

import functools
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _engine_tests import shared
from groups import all_well, in_threads, processes
from small import OTHERS, check_bits, check_differ, check_named, check_sums, counts_around, rounds

from omnihvd.engine import session

MOST = 256 << 10  # bytes of a small sum


def _counts(size: int, dtype: str) -> list[int]:
    """Around cache lines, pieces, the largest sum that each rank adds whole, and the largest."""
    edges = [64, 8 << 10, (64 << 10) // size // 64 * 64, MOST]
    counts = {0, 1, 2}
    return counts_around(edges, dtype, MOST, counts)


@pytest.mark.parametrize("dtype", session.dtypes)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_sums(size: int, dtype: str) -> None:
    check_sums("small", size, dtype, _counts(size, dtype))


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_all_ranks_get_the_same_bits(size: int, dtype: str) -> None:
    check_bits("small", size, dtype, MOST)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_between_processes(size: int) -> None:
    work = functools.partial(rounds, 400, 30_000, 0.002)
    with processes(size, work, "small") as ranks:
        ranks.gather()
        for rank in range(size):
            ranks.expect(rank, "done")


@pytest.mark.parametrize(("count", "dtype", "said"), OTHERS)
def test_ranks_that_differ_are_named(count: int, dtype: str, said: str) -> None:
    check_differ("small", count, dtype, said)


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

    check_named(in_threads(2, work, "small"), "100000 float64")


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
