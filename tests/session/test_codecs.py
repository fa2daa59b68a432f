"""Sums under codecs through whole engines."""

from __future__ import annotations

import re
from typing import Any

import _engine_tests
import numpy as np
import pytest
from groups import all_well, in_threads

from omnihvd.engine import codec, session

COUNTS = [0, 1, 255, 256, 257, 64 * 256 + 1, 300_003]
# The error to be expected of a dense sum of N normal tensors, relative to its size.
ERRORS = {("natural", 0): 0.5, ("qsgd", 8): 0.05, ("int", 8): 0.05, ("int", 4): 0.4,
          ("sign", 0): 0.9, ("terngrad", 0): 2.0}  # fmt: skip


def tensor(rank: int, count: int) -> np.ndarray:
    """Dense, but for a stretch of zeros, and one of nearly only zeros."""
    values = np.random.default_rng(rank).standard_normal(count).astype(np.float32)
    values[1024:4864] = 0
    values[20_000:30_000] *= np.arange(len(values[20_000:30_000])) % 50 == 0
    return values


@pytest.mark.parametrize("transport", ["memory", "ucx", "shared"])
@pytest.mark.parametrize("name", ERRORS)
def test_all_ranks_have_the_same_sum(name: tuple[str, int], transport: str) -> None:
    if transport == "ucx" and name[0] != "natural":
        pytest.skip("the transport knows no codecs")
    size = 3

    def work(rank: int, group: Any) -> list[bytes]:
        sums = []
        for count in COUNTS:
            c = codec.Codec(*name, seed=count)
            x, out = tensor(rank, count), np.full(count, -1, np.float32)
            group.allreduce(x, out, codec=c)
            in_place = x.copy()
            group.allreduce(in_place, in_place, codec=c)
            np.testing.assert_array_equal(x, tensor(rank, count))
            exact = sum(tensor(r, count).astype(np.float64) for r in range(size))
            for result in (out, in_place):
                np.testing.assert_array_equal(result[1024:4864], 0)
                if count > 256:
                    error = np.linalg.norm(result - exact) / np.linalg.norm(exact)
                    assert 0 < error < ERRORS[name]
                    if name != ("sign", 0):  # by which even these blocks are smaller than packed
                        mostly_zero = slice(20_224, 29_952)
                        np.testing.assert_allclose(
                            result[mostly_zero], exact[mostly_zero], atol=1e-6
                        )
            sums.append(out.tobytes() + in_place.tobytes())
        return sums

    results = all_well(in_threads(size, work, transport))
    assert results[0] == results[1] == results[2]


def test_in_rank_order_sums_reproduce() -> None:
    def work(rank: int, group: Any) -> bytes:
        x = tensor(rank, 300_003)
        group.allreduce(x, x, codec=codec.Codec("natural", seed=5))
        return x.tobytes()

    [one, *_] = all_well(in_threads(3, work, deterministic=True))
    [two, *_] = all_well(in_threads(3, work, deterministic=True, slots=2, scan_ahead=1))
    assert one == two


@pytest.mark.parametrize("name", [("natural", 0), ("qsgd", 4), ("sign", 0), ("terngrad", 0)])
def test_shared_memory_makes_the_sum_that_is_streamed(name: tuple[str, int]) -> None:
    def work(rank: int, group: Any) -> bytes:
        x = tensor(rank, 300_003)
        x[100_000 + rank] = np.inf
        x[5000] = -0.0
        group.allreduce(x, x, codec=codec.Codec(*name, seed=5))
        out = np.full_like(x, -1)
        group.allreduce(tensor(rank, 300_003), out, codec=codec.Codec(*name, seed=6))
        return x.tobytes() + out.tobytes()

    streamed = all_well(in_threads(3, work, deterministic=True))
    assert streamed == all_well(in_threads(3, work, "shared"))


def test_two_engine_threads() -> None:
    def work(rank: int, group: Any) -> bytes:
        x = tensor(rank, 300_003)
        group.allreduce(x, x, codec=codec.Codec("qsgd", 4, seed=5))
        return x.tobytes()

    assert len(set(all_well(in_threads(3, work, streams=2, message_bytes=4096)))) == 1


@pytest.mark.parametrize("transport", ["memory", "shared"])
@pytest.mark.parametrize(
    ("one", "other", "why"),
    [
        (("natural", 0, 1), ("sign", 0, 1), "float32 by natural.*float32 by sign|"
                                            "float32 by sign.*float32 by natural"),
        (("qsgd", 8, 1), ("qsgd", 4, 1), "by qsgd8.*by qsgd4|by qsgd4.*by qsgd8"),
        (("natural", 0, 1), ("natural", 0, 2), "not the same tensors"),
        (("natural", 0, 1), None, "by natural"),
    ],
)  # fmt: skip
def test_ranks_that_disagree(one: tuple, other: tuple | None, why: str, transport: str) -> None:
    def work(rank: int, group: Any) -> None:
        mine = other if rank == 1 else one
        x = tensor(rank, 100_003)
        group.allreduce(x, x, codec=codec.Codec(*mine) if mine else codec.Codec())

    for result in in_threads(3, work, transport):
        assert isinstance(result, Exception)
        assert "disagree" in str(result)
    assert re.search(why, str(result))


def test_what_it_saved_is_counted() -> None:
    def work(rank: int, group: Any) -> None:
        x = tensor(rank, 256 * 1000)
        x[256 * 500] = np.nan
        group.allreduce(x, x, codec=codec.Codec("natural"))

    before = session.stats()["codecs"]
    all_well(in_threads(2, work))
    after = session.stats()["codecs"]
    counted = {name: after[name] - before[name] for name in after}
    # Each block is sent once to its aggregator's process, or from it, by either rank.
    assert 1960 <= counted["blocks"] <= 2000
    assert counted["plain_blocks"] == 2
    assert 70 <= counted["packed_blocks"] <= 80
    assert 0.24 < counted["bytes"] / counted["plain_bytes"] < 0.26


def test_equal_shares_of_a_tensor_get_other_random_numbers() -> None:
    """Else the error of one would be that of all. Each share counts its blocks from 0."""
    share = tensor(0, 20 * 256)

    def work(rank: int, group: Any) -> np.ndarray:
        x = np.tile(share if rank == 2 else 0 * share, 3)
        out = np.empty_like(share)
        group.reduce_scatter(x, out, [len(share)] * 3, codec=codec.Codec("natural", seed=5))
        return out

    results = all_well(in_threads(3, work))
    for result in results:
        assert np.linalg.norm(result - share) < 0.5 * np.linalg.norm(share)
    assert results[0].tobytes() != results[1].tobytes()


def test_a_sum_of_headers_is_told_from_other_numbers() -> None:
    """As a library sums them, as int32: some ranks have a header, and the others zeros."""
    words = np.frombuffer(codec.Codec("natural", seed=7).header(64, 1000), np.int32)
    for ranks in (1, 2, 5):
        for having in range(8):
            total = (words * np.int32(having)).tobytes()
            assert _engine_tests.codec.begins_sum(total, ranks) == (1 <= having <= ranks)
    assert not _engine_tests.codec.begins_sum(np.arange(12, dtype=np.int32).tobytes(), 5)
    assert not _engine_tests.codec.begins_sum(words.tobytes()[:-1], 5)
