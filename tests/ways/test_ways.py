"""Sums by all ways, on ranks in threads: the library and the engine are functions of this file."""

from __future__ import annotations

import itertools
import threading
import time
from typing import Any

import numpy as np
import pytest
from _engine_tests import ways
from groups import Meeting, blocks_of, sum_of

BLOCK = 256


class Rank:
    """One rank: its library, its engine, and what was asked of them."""

    def __init__(self, rank: int, meeting: Meeting, setting: Any, scatters: bool) -> None:
        self.rank = rank
        self.said = meeting.allgather(rank)
        self.ways = ways.Ways(setting, BLOCK, scatters=scatters, connect_s=1e-9)  # 0: connected
        self.library = ways.Library(rank, meeting.size, self.gather, self.sum)
        self.asked: list[str] = []
        self.seconds_per_byte = 0.0  # that the library takes at least

    def gather(self, what: str, mine: bytes) -> list[bytes]:
        """Fails where ranks are not at the same point."""
        self.asked.append(what)
        all_said = self.said(what.encode() + b" " + mine)
        assert len({said.split(b" ", 1)[0] for said in all_said}) == 1, all_said
        return [said.split(b" ", 1)[1] for said in all_said]

    def sum(self, how: str, source: memoryview, target: memoryview) -> None:
        if how != "stream":
            time.sleep(self.seconds_per_byte * len(source))
        parts = [np.frombuffer(part, self.dtype) for part in self.gather(how, bytes(source))]
        np.frombuffer(target, self.dtype)[:] = np.sum(parts, axis=0, dtype=self.dtype)

    def stream(self, source: memoryview, target: memoryview, coded: bool) -> int:
        mine = np.frombuffer(source, self.dtype)
        blocks = [(mine[at : at + BLOCK] != 0).any() for at in range(0, len(mine), BLOCK)]
        all_blocks = self.gather("blocks", np.array(blocks).tobytes())
        self.sum("stream", source, target)
        return int(np.any([np.frombuffer(theirs, bool) for theirs in all_blocks], 0).sum())

    def allreduce(self, tensor: np.ndarray, in_place: bool) -> tuple[str, np.ndarray]:
        out = tensor if in_place else np.full_like(tensor, 99)
        self.dtype = tensor.dtype
        how = self.ways.allreduce(self.library, tensor, out, str(tensor.dtype), self.stream)
        return how, out


def on_ranks(size: int, setting: Any, work: Any, scatters: bool = False) -> list[Any]:
    meeting = Meeting(size)
    results: list[Any] = [None] * size

    def run(rank: int) -> None:
        try:
            results[rank] = work(Rank(rank, meeting, setting, scatters))
        except BaseException as why:  # handed to the test; pytest.raises() throws no Exception
            meeting.abort()
            results[rank] = why

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


COUNTS = [1, 2, 255, 256, 257, 8 * 256, 8 * 256 + 1, 65 * 256 - 3, 20_001]


@pytest.mark.parametrize("setting", ["stream", "union", "original", "auto"])
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_sums(size: int, setting: str) -> None:
    def work(rank: Rank) -> None:
        for count, density, in_place, dtype in itertools.product(
            COUNTS, [0, 0.02, 0.3, 1], [True, False], ["float32", "float64", "int8", "int64"]
        ):
            tensor = blocks_of(rank.rank, count, density, dtype)
            how, total = rank.allreduce(tensor.copy(), in_place)
            np.testing.assert_array_equal(total, sum_of(size, count, density, dtype))
            if setting == "union":
                assert how in ("union", "original")  # that, where the union is nearly everything
            elif setting != "auto":
                assert how == setting

    on_ranks(size, ways.Way.__members__[setting], work)


def test_negative_zeros_are_zeros() -> None:
    def work(rank: Rank) -> bytes:
        tensor = np.zeros(3000, np.float32)
        tensor[300 * rank.rank : 2000] = -0.0
        tensor[2500] = 1
        return rank.allreduce(tensor, True)[1].tobytes()

    results = on_ranks(3, ways.Way.__members__["union"], work)
    assert len(set(results)) == 1
    assert np.frombuffer(results[0], np.float32)[2500] == 3


def test_all_ranks_go_the_same_ways() -> None:
    """Sums of a step that changes on the way, in sizes that repeat and such that do not; orders are
    rank 0's, by its own times."""

    def work(rank: Rank) -> tuple[list[str], list[str]]:
        sizes = np.random.default_rng(5)
        taken = []
        for step in range(150):
            dense = step < 50 or step > 100
            for count in (3000, 20_000, 3000, int(sizes.integers(1000, 30_000))):
                density = 0.9 if dense or count == 20_000 else 0.02
                tensor = blocks_of(rank.rank + step, count, density)
                expected = sum(blocks_of(step + other, count, density) for other in range(3))
                how, total = rank.allreduce(tensor, bool(step % 2))
                np.testing.assert_array_equal(total, expected)
                taken.append(how)
        return taken, rank.asked

    results = on_ranks(3, ways.Way.auto, work)
    assert results[0] == results[1] == results[2]
    assert set(results[0][0]) >= {"stream", "union", "original"}


@pytest.mark.parametrize("setting", ["auto", "union"])
def test_reduce_scatters_are_looked_at_but_not_made_on_unions(setting: str) -> None:
    """Nobody tells here what they write: the library and the engine give all of the sum."""

    def work(rank: Rank) -> tuple[list[str], list[str]]:
        taken = []
        for step in range(60):
            tensor = blocks_of(rank.rank + step, 20_000, 0.02)
            given = tensor.copy()
            how, total = rank.allreduce(given, in_place=False)
            np.testing.assert_array_equal(given, tensor)
            np.testing.assert_array_equal(
                total, sum(blocks_of(step + other, 20_000, 0.02) for other in range(3))
            )
            taken.append(how)
        return taken, rank.asked

    results = on_ranks(3, ways.Way.__members__[setting], work, scatters=True)
    assert results[0] == results[1] == results[2]
    taken, asked = results[0]
    assert "union" in asked  # of bits
    made = set(taken) - {"coded"}  # a trial, where the machine is so busy that links look slow
    assert made == ({"stream", "original"} if setting == "auto" else {"original"})


def test_a_dense_tensor_that_turns_sparse_is_found_out() -> None:
    def work(rank: Rank) -> list[str]:
        rank.seconds_per_byte = 1e-8
        for _ in range(400):
            rank.allreduce(blocks_of(rank.rank, 50_000, 1), True)
        rank.asked.clear()
        for _ in range(140):
            rank.allreduce(blocks_of(rank.rank, 50_000, 0.01), True)
        return rank.asked

    asked = on_ranks(2, ways.Way.auto, work)[0]
    last = asked[-20:]
    assert any(what in ("union", "blocks") for what in last)


def test_a_failing_library_fails_the_sum_alike() -> None:
    def work(rank: Rank) -> str:
        def broken(how: str, source: memoryview, target: memoryview) -> None:
            raise RuntimeError("the library has failed")

        library = ways.Library(rank.rank, 2, rank.gather, broken)
        tensor = blocks_of(rank.rank, 5000, 1)
        with pytest.raises(RuntimeError, match="the library has failed"):
            rank.ways.allreduce(library, tensor, tensor, "float32", rank.stream)
        return "failed"

    assert on_ranks(2, ways.Way.original, work) == ["failed"] * 2


@pytest.mark.parametrize("count", [1000, 20_000_000 // 4])
def test_a_first_sum_needs_no_order(count: int) -> None:
    """A communicator that sums once makes one collective of the library, as without omnihvd."""

    def work(rank: Rank) -> list[str]:
        rank.allreduce(np.ones(count, np.float32), True)
        return rank.asked

    first = ["original"] if count == 1000 else ["blocks", "stream"]
    assert on_ranks(2, ways.Way.auto, work) == [first] * 2
