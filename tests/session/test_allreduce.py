"""Whole engines: threads, transports and groups, against closed-form sums."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import _engine_tests
import numpy as np
import psutil
import pytest
from groups import all_well, blocks_of, in_threads, processes, sum_of

BLOCK = 256
COUNTS = [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 64 * BLOCK, 64 * BLOCK + 1, 100_003, 1_000_003]


@pytest.mark.parametrize("transport", ["memory", "ucx", "udp"])
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_sizes_and_densities(size: int, transport: str) -> None:
    def work(rank: int, group: Any) -> None:
        for count in COUNTS:
            for density in (0, 0.01, 0.4, 1):
                x = blocks_of(rank, count, density)
                before = x.copy()
                out = np.full(count, -1, x.dtype)
                group.allreduce(x, out)
                expected = sum_of(size, count, density)
                np.testing.assert_array_equal(out, expected)
                np.testing.assert_array_equal(x, before)
                group.allreduce(x, x)
                np.testing.assert_array_equal(x, expected)

    all_well(in_threads(size, work, transport))


@pytest.mark.parametrize("dtype", ["float16", "float64", "int8", "uint8", "int32", "int64"])
def test_dtypes(dtype: str) -> None:
    def work(rank: int, group: Any) -> None:
        x = blocks_of(rank, 200_003, 0.3, dtype)
        group.allreduce(x, x)
        np.testing.assert_array_equal(x, sum_of(3, 200_003, 0.3, dtype))

    all_well(in_threads(3, work))


def test_bfloat16() -> None:
    # Small integers are exact in bfloat16, which is the upper half of a float32.
    def bits(values: np.ndarray) -> np.ndarray:
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)

    def work(rank: int, group: Any) -> None:
        x = bits(blocks_of(rank, 50_001, 0.5) % 32)
        group.allreduce(x, x, "bfloat16")
        expected = sum((blocks_of(r, 50_001, 0.5) % 32) for r in range(3))
        np.testing.assert_array_equal(x, bits(expected))

    all_well(in_threads(3, work))


def test_several_streams_and_tiny_messages() -> None:
    def work(rank: int, group: Any) -> None:
        for count in COUNTS:
            x = blocks_of(rank, count, 0.2)
            group.allreduce(x, x)
            np.testing.assert_array_equal(x, sum_of(3, count, 0.2))

    all_well(in_threads(3, work, streams=3, message_bytes=2048, slots=2, scan_ahead=3))


def test_settings_are_those_of_rank_0() -> None:
    """Ranks with other settings and other numbers of engine threads still work together."""
    from groups import Meeting, settings

    meeting = Meeting(2)
    outcome: list[Any] = [None, None]

    def run(rank: int) -> None:
        mine = settings(streams=1 + 2 * rank, block_size=256 >> rank, slots=4 + rank)
        group = _engine_tests.session.engine(mine, "memory").join(rank, 2, meeting.allgather(rank))
        x = blocks_of(rank, 300_000, 0.3)
        group.allreduce(x, x)
        outcome[rank] = x

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    for x in outcome:
        np.testing.assert_array_equal(x, sum_of(2, 300_000, 0.3))


def test_deterministic_sums_reproduce_bit_for_bit() -> None:
    def work(rank: int, group: Any) -> list[bytes]:
        runs = []
        for repeat in range(5):
            x = np.random.default_rng(rank).standard_normal(500_000).astype(np.float32)
            time.sleep(0.002 * ((rank + repeat) % 3))
            group.allreduce(x, x)
            runs.append(x.tobytes())
        return runs

    results = all_well(in_threads(3, work, "ucx", deterministic=True))
    assert len({run for runs in results for run in runs}) == 1


def test_nan_and_infinity_survive_and_minus_zero_is_zero() -> None:
    def work(rank: int, group: Any) -> np.ndarray:
        x = np.zeros(10_000, np.float32)
        x[300] = np.nan if rank == 0 else 0
        x[5000] = np.inf if rank == 1 else 1
        x[8000:8600] = -0.0 if rank == 0 else 0.0
        group.allreduce(x, x)
        return x

    for x in all_well(in_threads(2, work)):
        assert np.isnan(x[300]) and np.isinf(x[5000])
        assert x[8000:8600].tobytes() == bytes(2400)
        assert np.count_nonzero(np.nan_to_num(x)) == 1


def test_groups_side_by_side() -> None:
    """Two groups of the same ranks, each with a collective in flight, on one engine each."""
    from groups import Meeting, session, settings

    meetings = [Meeting(3), Meeting(3)]

    def run(rank: int) -> None:
        engine = session.Engine(settings(timeout_s=30))
        groups = [engine.join(rank, 3, meeting.allgather(rank)) for meeting in meetings]

        def reduce(which: int) -> None:
            for count in (1000, 300_000, 70_000):
                x = blocks_of(rank, count, 0.5) * (which + 1)
                groups[which].allreduce(x, x)
                np.testing.assert_array_equal(x, sum_of(3, count, 0.5) * (which + 1))

        # The ranks start their groups' calls in different orders.
        with ThreadPoolExecutor(2) as calls:
            list(calls.map(reduce, (rank % 2, 1 - rank % 2)))

    with ThreadPoolExecutor(3) as ranks:
        list(ranks.map(run, range(3)))


def _sum_in_process(rank: int, size: int, group: Any, pipe: Any) -> None:
    for count in (1, 100_003, 3_000_001):
        x = blocks_of(rank, count, 0.1)
        group.allreduce(x, x)
        np.testing.assert_array_equal(x, sum_of(size, count, 0.1))


def test_in_processes() -> None:
    with processes(3, _sum_in_process) as ranks:
        ranks.gather()
        for rank in range(3):
            ranks.expect(rank, "done")


def _compute(rank: int, size: int, group: Any, pipe: Any) -> None:
    x = blocks_of(rank, 100_000, 0.1)
    group.allreduce(x, x)
    me = psutil.Process()
    time.sleep(0.5)
    before = me.cpu_times()
    time.sleep(2)
    after = me.cpu_times()
    pipe.send(("cpu", after.user + after.system - before.user - before.system))


def test_an_idle_engine_uses_no_cpu() -> None:
    with processes(2, _compute) as ranks:
        ranks.gather()
        for rank in range(2):
            assert ranks.expect(rank, "cpu") < 0.02  # of 2 s
