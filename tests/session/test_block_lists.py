"""Sums of lists of blocks by whole engines, against closed forms."""

from __future__ import annotations

import re
import threading
from typing import Any

import numpy as np
import pytest
from _engine_tests.session import allreduce_blocks
from groups import all_well, in_threads

from omnihvd.engine import EngineError


def values_of(rank: int, numbers: np.ndarray, length: int, dtype: str = "float32") -> np.ndarray:
    """Rows of a rank, unique per rank, row and column up to 89 of them."""
    column = np.arange(length, dtype=np.int64)
    rows = (numbers[:, np.newaxis] * 13 + column * 5 + rank * 31) % 89 + 1
    return rows.astype(dtype)


def numbers_of(rank: int, blocks: int, step: int) -> np.ndarray:
    """Each rank has about one row in `step`; ranks share some."""
    every = np.arange(blocks, dtype=np.int64)
    return every[(every * 7 + every // 11 + rank * 3) % step < 1 + (every % 3 == 0)]


def dense_sum(
    lists: list[np.ndarray], blocks: int, length: int, dtype: str = "float32"
) -> np.ndarray:
    total = np.zeros((blocks, length), dtype)
    for rank, numbers in enumerate(lists):
        np.add.at(total, numbers, values_of(rank, numbers, length, dtype))
    return total


def check(
    group: Any, rank: int, lists: list[np.ndarray], blocks: int, length: int, dtype: str = "float32"
) -> None:
    """Sums the ranks' lists, as a list and dense."""
    mine = lists[rank]
    values = values_of(rank, mine, length, dtype)
    given = values.copy(), mine.copy()
    expected = dense_sum(lists, blocks, length, dtype)
    union = np.unique(np.concatenate(lists))
    numbers, rows = allreduce_blocks(group, values, mine, blocks)
    np.testing.assert_array_equal(numbers, union)
    np.testing.assert_array_equal(rows, expected[union])
    assert rows.dtype == values.dtype
    out = np.full((blocks, length), 77, dtype)
    assert allreduce_blocks(group, values, mine, blocks, out) is None
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(values, given[0])
    np.testing.assert_array_equal(mine, given[1])


SHAPES = [(1, 1), (1, 300), (7, 16), (5000, 1), (3000, 31), (2000, 256), (40, 20_000), (2, 65_536)]


@pytest.mark.parametrize(
    ("size", "transport"), [(1, "memory"), (2, "memory"), (5, "memory"), (3, "ucx"), (3, "udp")]
)
def test_sizes_lengths_and_densities(size: int, transport: str) -> None:
    def work(rank: int, group: Any) -> None:
        for blocks, length in SHAPES:
            for step in (1, 4, 97):
                lists = [numbers_of(r, blocks, step) for r in range(size)]
                check(group, rank, lists, blocks, length)

    all_well(in_threads(size, work, transport))


@pytest.mark.parametrize("dtype", ["float16", "float64", "int8", "uint8", "int32", "int64"])
def test_dtypes(dtype: str) -> None:
    def work(rank: int, group: Any) -> None:
        check(group, rank, [numbers_of(r, 900, 3) for r in range(3)], 900, 40, dtype)

    all_well(in_threads(3, work))


@pytest.mark.parametrize(
    "more",
    [
        {"streams": 3, "slots": 2, "message_bytes": 2048, "scan_ahead": 3},
        {"deterministic": True},
        {"levels": "2x2"},
        {"encrypt": True, "secret": "swordfish"},
    ],
    ids=str,
)
def test_mixed_with_dense_sums(more: dict[str, Any]) -> None:
    def work(rank: int, group: Any) -> None:
        for step in (1, 5, 60):
            check(group, rank, [numbers_of(r, 2000, step) for r in range(4)], 2000, 64)
            x = np.full(5000, rank + step, np.float32)
            group.allreduce(x, x)
            assert (x == 4 * step + 6).all()

    all_well(in_threads(4, work, **more))


@pytest.mark.parametrize("blocks", (1 << 33, 1 << 40))
def test_few_blocks_of_a_very_wide_tensor(blocks: int) -> None:
    """As of features by their hash: blocks that follow each other lie far apart."""
    numbers = [np.unique(np.random.default_rng(rank).integers(0, blocks, 200)) for rank in range(2)]

    def work(rank: int, group: Any) -> None:
        values = values_of(rank, numbers[rank], 4)
        found, rows = allreduce_blocks(group, values, numbers[rank], blocks)
        expected: dict[int, np.ndarray] = {}
        for one, mine in enumerate(numbers):
            for number, row in zip(mine.tolist(), values_of(one, mine, 4)):
                expected[number] = expected.get(number, 0) + row
        assert found.tolist() == sorted(expected)
        np.testing.assert_array_equal(rows, [expected[number] for number in sorted(expected)])

    all_well(in_threads(2, work))


def test_empty_lists() -> None:
    """First of some ranks, then of all."""
    none = np.empty(0, np.int64)
    some = np.array([3, 998, 999])

    def work(rank: int, group: Any) -> None:
        check(group, rank, [none, some, none], 1000, 50)
        check(group, rank, [none, none, none], 1000, 50)

    all_well(in_threads(3, work))


@pytest.mark.parametrize("dtype", ["float16", "float32", "int64"])
def test_unsorted_and_repeated(dtype: str) -> None:
    """Lists in any order give the sum of all their rows."""
    lists = [np.array([9, 2, 5]), np.array([5, 5, 0, 5]), np.array([499, 0])]

    def work(rank: int, group: Any) -> None:
        check(group, rank, lists, 500, 33, dtype)

    all_well(in_threads(3, work))


def test_rows_with_zeros_and_special_values() -> None:
    """Zeros in a row take no bytes of their own; a listed row counts even if it is all zero."""

    def work(rank: int, group: Any) -> None:
        rows = np.zeros((3, 256), np.float32)
        rows[1, 7 * rank] = rank + 1
        rows[2, 3] = np.inf if rank == 0 else np.nan if rank == 1 else 1
        numbers, total = allreduce_blocks(group, rows, np.array([4, 8, 11]), 20)
        np.testing.assert_array_equal(numbers, [4, 8, 11])
        assert not total[0].any() and np.isnan(total[2, 3])
        assert [total[1, 7 * r] for r in range(3)] == [1, 2, 3] and total[1].sum() == 6

    all_well(in_threads(3, work))


def test_rows_half_of_zeros_in_many_messages() -> None:
    """Each message packs its rows into the memory of the last one."""
    blocks, length = 2000, 256

    def half(rank: int) -> np.ndarray:
        rows = values_of(rank, np.arange(blocks), length)
        rows[:, ::2] = 0
        return rows

    def work(rank: int, group: Any) -> None:
        _, total = allreduce_blocks(group, half(rank), np.arange(blocks), blocks)
        np.testing.assert_array_equal(total, half(0) + half(1))

    all_well(in_threads(2, work, message_bytes=4096, slots=2, streams=1))


def test_a_list_and_a_dense_tensor_of_the_same_blocks() -> None:
    """A rank may have the tensor dense: its blocks are OMNIHVD_BLOCK_SIZE long."""
    lists = [numbers_of(r, 300, 4) for r in range(2)]

    def work(rank: int, group: Any) -> None:
        expected = dense_sum(lists, 300, 256)
        if rank == 0:
            out = np.empty((300, 256), np.float32)
            allreduce_blocks(group, values_of(0, lists[0], 256), lists[0], 300, out)
        else:
            out = np.zeros((300, 256), np.float32)
            out[lists[1]] = values_of(1, lists[1], 256)
            group.allreduce(out, out)
        np.testing.assert_array_equal(out, expected)

    all_well(in_threads(2, work))


def disagreement(shapes: list[tuple[int, int]]) -> list[str]:
    """The errors of ranks with these blocks and lengths."""

    def work(rank: int, group: Any) -> str:
        blocks, length = shapes[rank]
        numbers = np.array([0])
        with pytest.raises(EngineError) as why:
            allreduce_blocks(group, values_of(rank, numbers, length), numbers, blocks)
        return str(why.value)

    return [str(said) for said in all_well(in_threads(len(shapes), work))]


def test_lengths_that_differ() -> None:
    for said in disagreement([(100, 64), (100, 64), (50, 128)]):
        assert "the ranks disagree about allreduce number 1" in said
        assert "in blocks of" in said and "64" in said and "128" in said
    for said in disagreement([(100, 64), (101, 64)]):
        assert "6400 float32" in said and "6464 float32" in said


@pytest.mark.parametrize(
    ("numbers", "blocks", "length", "says"),
    [
        ([3, 10], 10, 4, "block 10 of a tensor of 10 blocks: there is no such block"),
        ([-1, 3], 10, 4, "block -1 of a tensor of 10 blocks"),
        ([], 0, 4, "it needs 1 block"),
        ([], 1 << 60, 4, "2^56"),
        ([], 10, 0, "a list's blocks have 1 to 65536"),
        ([], 10, 65_537, "a list's blocks have 1 to 65536"),
    ],
)
def test_impossible_lists(numbers: list[int], blocks: int, length: int, says: str) -> None:
    """One rank's: all are told, and none waits for it."""
    told = threading.Barrier(2)  # else rank 1 may have ended before rank 0 reads why

    def work(rank: int, group: Any) -> None:
        own = np.array(numbers if rank else [], np.int64)
        wide = (blocks, length) if rank else (10, 4)
        with pytest.raises(EngineError, match=re.escape(says)):
            allreduce_blocks(group, np.ones((len(own), wide[1]), np.float32), own, wide[0])
        told.wait(20)

    all_well(in_threads(2, work))


def test_integer_arithmetic_takes_no_lists() -> None:
    def work(rank: int, group: Any) -> None:
        with pytest.raises(EngineError, match="OMNIHVD_ARITHMETIC=integer sums no lists"):
            allreduce_blocks(group, np.ones((1, 8), np.float32), np.array([rank]), 2)
        lists = [np.array([0, 5]), np.array([5])]
        check(group, rank, lists, 9, 8, "float64")

    all_well(in_threads(2, work, arithmetic="integer"))
