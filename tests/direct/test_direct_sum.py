"""Small sums between hosts, in the caller's thread. A rank that fails:
tests/session/test_failures.py."""

from __future__ import annotations

import functools
import gc
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from _engine_tests import direct
from groups import (
    Meeting,
    all_well,
    blocks_of,
    in_threads,
    log_level,
    processes,
    settings,
    sum_of,
)
from small import OTHERS, check_bits, check_differ, check_named, check_sums, counts_around, rounds

from omnihvd.engine import EngineError, session

BLOCK = 256  # elements
MOST, MOST_OF_MORE = 1 << 20, 128 << 10  # bytes of a sum: of two ranks, and of more
AT_ONCE, TINY = 2 << 10, 32 << 10  # borders: algorithms/direct/


def _counts(size: int, dtype: str) -> list[int]:
    """Around blocks, messages, and the borders of what is sent how."""
    edges = [AT_ONCE, TINY // (size - 1), direct.message_bytes, size * direct.message_bytes, MOST]
    counts = {1, 2, BLOCK - 1, BLOCK, BLOCK + 1, size * BLOCK - 1, size * BLOCK}
    return counts_around(edges, dtype, MOST, counts)


@pytest.mark.parametrize("dtype", session.dtypes)
@pytest.mark.parametrize("size", [2, 3, 4])
def test_sums(size: int, dtype: str) -> None:
    check_sums("direct", size, dtype, _counts(size, dtype))


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("density", [0.0, 0.02, 0.5, 1.0])
@pytest.mark.parametrize("count", [700, 30_001, 250_000])
def test_sums_in_any_order_of_messages(size: int, density: float, count: int) -> None:
    for seed in range(20):
        tensors = [blocks_of(rank, count, density) for rank in range(size)]
        sent, refused = direct.sum_all(tensors, "float32", BLOCK, seed)
        for tensor in tensors:
            np.testing.assert_array_equal(tensor, sum_of(size, count, density))
        assert refused == 0
        heads = 4096 * size  # of messages, and bitmaps
        if density == 0:
            assert max(sent) < heads
        elif count * 4 * (size - 1) > TINY:
            rings = 2 * (size - 1) / size * count * 4
            assert max(sent) < rings * min(1, 2 * size * density) + heads


@pytest.mark.parametrize("size", [2, 4])
def test_blocks_of_any_size(size: int) -> None:
    for block in (1, 8, 1000, 4096):
        for count in (1, 4095, 33_000):
            tensors = [blocks_of(rank, count, 0.4) for rank in range(size)]
            expected = np.sum(tensors, axis=0, dtype=np.float32)
            direct.sum_all(tensors, "float32", block, block + count)
            for tensor in tensors:
                np.testing.assert_array_equal(tensor, expected)


@pytest.mark.parametrize("size", [2, 3])
def test_broken_messages_are_refused(size: int) -> None:
    """And nothing beyond a message is read (make sanitize)."""
    refused = 0
    for seed in range(300):
        tensors = [blocks_of(rank, 20_000, 0.5) for rank in range(size)]
        refused += direct.sum_all(tensors, "float32", BLOCK, seed, broken=3)[1]
    assert refused > 50


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_all_ranks_get_the_same_bits(size: int, dtype: str) -> None:
    check_bits("direct", size, dtype, MOST)


@pytest.mark.parametrize(
    ("hosts", "values", "expected"),
    [
        ("ab", {}, MOST),
        ("abcd", {"transport": "ucx"}, MOST_OF_MORE),
        ("aabb", {}, MOST_OF_MORE // 2),  # two share a link
        ("aaab", {}, MOST_OF_MORE // 3),
        ("aa", {}, MOST // 2),  # of one host that shares no memory
        ("ab" * 8, {}, MOST_OF_MORE // 8),
        ("ab" * 8 + "c", {}, 0),  # too many connections
        ("ab", {"transport": "udp"}, 0),  # it would have to repeat what is lost between sums
        ("ab", {"encrypt": True}, 0),
        ("ab", {"way": "stream"}, 0),
        ("ab", {"arithmetic": "integer"}, 0),
        ("ab", {"inline": "10.0.0.9:7"}, 0),
        ("ab", {"aggregators": ["h:1"]}, 0),
        ("ab", {"block_size": 8192}, 0),
    ],
)
def test_which_sums_are_direct(hosts: str, values: dict[str, Any], expected: int) -> None:
    assert direct.most_bytes(settings(**{"way": "auto", **values}), list(hosts)) == expected


@pytest.mark.parametrize("size", [2, 3, 4])
def test_between_processes(size: int) -> None:
    work = functools.partial(rounds, 300, 100_000, 0.05)
    with processes(size, work, "direct") as ranks:
        ranks.gather()
        for rank in range(size):
            ranks.expect(rank, "done")


def test_a_rank_that_is_done_need_not_stay() -> None:
    """Nobody moves its messages any more: all of them have gone."""
    size, alone = 3, threading.Event()

    def work(rank: int, group: Any) -> None:
        x = np.full(MOST // 4, rank + 1, np.float32)
        group.allreduce(x, x)
        assert (x == 6).all()
        if rank == 2:
            alone.wait(20)  # in no sum, while the others go on
            return
        time.sleep(0.3)
        alone.set()

    all_well(in_threads(size, work, "direct"))


@pytest.mark.parametrize(("count", "dtype", "said"), OTHERS)
def test_ranks_that_differ_are_named(count: int, dtype: str, said: str) -> None:
    check_differ("direct", count, dtype, said)


@pytest.mark.parametrize("first", [0, 1])
def test_a_rank_in_another_sum_is_named(first: int) -> None:
    """It looks while it waits there."""

    def work(rank: int, group: Any) -> None:
        x = np.ones(1000, np.float32)
        group.allreduce(x, x)
        if rank != first:
            time.sleep(0.5)
        if rank == 1:
            group.pass_by(100_000, "float64")
            why = ""
            while not why:
                time.sleep(0.1)
                why = group.look()
            raise EngineError(why)
        group.allreduce(x, x)

    check_named(in_threads(2, work, "direct"), "100000 float64")


def _shorter(word: bytes) -> bytes:
    """An address and a token, each after its length: the token of another release."""
    begin = 8 + int.from_bytes(word[:8], "little")
    token = word[begin + 8 : -1]
    return word[:begin] + len(token).to_bytes(8, "little") + token


def test_ranks_that_cannot_connect_sum_another_way(capfd: pytest.CaptureFixture[str]) -> None:
    """All of them, though only one cannot."""
    meeting = Meeting(3)

    def join(rank: int) -> str:
        allgather = meeting.allgather(rank)

        def broken(mine: bytes) -> list[bytes]:
            said = allgather(mine)
            return [_shorter(word) if rank == 1 and len(word) > 60 else word for word in said]

        with pytest.raises(EngineError, match="no direct connections") as why:
            direct.DirectSum(settings(), rank, 3, broken)
        return str(why.value)

    with log_level("info"), ThreadPoolExecutor(3) as ranks:
        assert len(list(ranks.map(join, range(3)))) == 3
    said = "small sums between hosts are not made directly: rank 1: another rank has another"
    assert f"{said} omnihvd: install the same one on all hosts" in capfd.readouterr().err


def test_ranks_pass_large_sums_alike() -> None:
    """Their notices of these are no reason to fail, early or late."""

    def work(rank: int, group: Any) -> None:
        for i in range(60):
            x = np.full(1000, rank + i, np.float32)
            group.allreduce(x, x)
            assert (x == 3 * i + 3).all()
            for large in range(i % 4):
                time.sleep(0.001 * ((i + rank) % 3))
                group.pass_by(100_000 + large, "float32")
                assert group.look() == ""

    all_well(in_threads(3, work, "direct"))


def test_a_process_has_room_for_so_many_groups() -> None:
    """The next one's small sums go another way."""

    def work(rank: int, group: Any) -> Any:
        return group

    kept = []
    while not isinstance((made := in_threads(2, work, "direct"))[0], EngineError):
        kept.append(made)
        assert len(kept) <= 8  # of 16, two ranks each
    assert "no direct connections" in str(made[0])
    del kept[0], made
    gc.collect()
    all_well(in_threads(2, work, "direct"))
