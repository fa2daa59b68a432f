"""Aggregators as a tree in whole engines: sums, what people are told of failures, and that messages
are those of the simulation."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest
from _engine_tests import protocol
from aggregators import SECRET, addresses, servers
from groups import (
    all_well,
    blocks_of,
    in_threads,
    leaves,
    log_level,
    processes,
    sum_for_ever,
    sum_of,
)
from hypothesis import given
from hypothesis import strategies as st

import omnihvd
from omnihvd.bench.patterns import BLOCK, Point, part
from omnihvd.engine import EngineError, codec
from simulator.model import Network, simulate

COUNTS = [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 70_001, 300_003]
SOON_S = 15


def reduce(rank: int, group: Any, size: int) -> None:
    for count in COUNTS:
        for density in (0, 0.05, 1):
            expected = sum_of(size, count, density)
            x = blocks_of(rank, count, density)
            out = np.full(count, -1, x.dtype)
            group.allreduce(x, out)
            np.testing.assert_array_equal(out, expected)
            group.allreduce(x, x)
            np.testing.assert_array_equal(x, expected)


@pytest.mark.parametrize(
    ("size", "levels", "transport"),
    [
        (4, "2x2", "memory"),
        (8, "2x2x2", "memory"),
        (9, "3x3", "memory"),
        (12, "3x4", "memory"),
        (7, "3x3", "memory"),
        (5, "2x3", "memory"),
        (3, "2x8x8", "memory"),
        (2, "2x2", "memory"),
        (1, "4", "memory"),
        (6, "2x3", "ucx"),
        (4, "2x2", "udp"),
    ],
)
def test_sums(size: int, levels: str, transport: str) -> None:
    all_well(in_threads(size, lambda r, g: reduce(r, g, size), transport, levels=levels))


def test_several_threads_tiny_messages_and_many_rounds() -> None:
    def work(rank: int, group: Any) -> None:
        for dtype in ("float32", "int8", "float64"):
            x = blocks_of(rank, 100_003, 0.2, dtype)
            group.allreduce(x, x)
            np.testing.assert_array_equal(x, sum_of(6, 100_003, 0.2, dtype))

    values: dict[str, Any] = {"streams": 2, "message_bytes": 2048, "slots": 2, "scan_ahead": 3}
    all_well(in_threads(6, work, levels="3x2", **values))


def test_deterministic_sums_reproduce_bit_for_bit() -> None:
    def work(rank: int, group: Any) -> set[bytes]:
        runs = set()
        for repeat in range(4):
            x = np.random.default_rng(rank).standard_normal(200_000).astype(np.float32)
            time.sleep(0.002 * ((rank + repeat) % 3))
            group.allreduce(x, x)
            runs.add(x.tobytes())
        return runs

    results = all_well(in_threads(6, work, levels="2x3", deterministic=True))
    assert len(set.union(*results)) == 1


@pytest.mark.parametrize("name", [("natural", 0), ("qsgd", 8)])
def test_sums_under_codecs_are_the_same_on_all_ranks(name: tuple[str, int]) -> None:
    """Partial sums are coded once more: four independent errors one upon another."""

    def work(rank: int, group: Any) -> bytes:
        x = np.random.default_rng(rank).standard_normal(70_001).astype(np.float32)
        exact = sum(np.random.default_rng(r).standard_normal(70_001) for r in range(8))
        group.allreduce(x, x, codec=codec.Codec(*name, seed=7))
        error = np.linalg.norm(x - exact) / np.linalg.norm(exact)
        assert 0 < error < 2 * {"natural": 8**-0.5, "qsgd": 0.02}[name[0]]
        return x.tobytes()

    assert len(set(all_well(in_threads(8, work, levels="2x2x2")))) == 1


@pytest.mark.parametrize("levels", ["auto", "2x2", "2x2x8"])
def test_dedicated_aggregators_are_the_topmost(levels: str) -> None:
    with servers(2) as started:
        values: dict[str, Any] = {"aggregators": addresses(started), "secret": SECRET}
        all_well(in_threads(4, lambda r, g: reduce(r, g, 4), "ucx", levels=levels, **values))


def test_what_a_rank_has_joined_is_logged(capfd: pytest.CaptureFixture[str]) -> None:
    with log_level("info"):
        all_well(in_threads(4, lambda rank, group: None, levels="2x2", log="info"))
        all_well(in_threads(2, lambda rank, group: None, log="info"))
    said = capfd.readouterr().err
    assert said.count("a group of 4 ranks and 4 colocated aggregators on 2 levels\n") == 4
    assert said.count("a group of 2 ranks and 2 colocated aggregators on 1 level\n") == 2


def test_levels_that_leave_ranks_apart_are_an_error_on_all() -> None:
    for result in in_threads(5, lambda rank, group: None, levels="2x2"):
        assert isinstance(result, EngineError)
        assert "OMNIHVD_LEVELS=2x2 leaves 2 groups of 5 ranks apart: join more on a level" in str(
            result
        )


def test_a_killed_rank_is_named_by_all_survivors() -> None:
    """Most of them have no connection to it."""
    with processes(8, sum_for_ever, levels="2x2x2") as ranks:
        ranks.gather()
        for rank in range(8):
            ranks.expect(rank, "ready")
        time.sleep(0.5)
        ranks.processes[3].kill()
        for rank in {*range(8)} - {3}:
            assert "rank 3 (" in ranks.expect(rank, "sum failed", SOON_S)


@pytest.mark.parametrize("away", [0, 5])
def test_who_is_waited_for_is_named_through_levels(away: int) -> None:
    def work(rank: int, group: Any) -> None:
        if rank == away:
            time.sleep(4)
        x = blocks_of(rank, 100_000, 1)
        group.allreduce(x, x)

    for result in in_threads(8, work, levels="2x2x2", timeout_s=1.0):
        assert isinstance(result, EngineError)
        assert "did not end within 1 s (OMNIHVD_TIMEOUT)" in str(result)
        assert f"waiting for rank {away} (" in str(result)


def test_a_rank_that_leaves_is_not_waited_for() -> None:
    results = in_threads(9, leaves(6, 100_000), levels="3x3")
    for rank, result in enumerate(results):
        assert (result is None) == (rank == 6)
        assert rank == 6 or "rank 6 (" in str(result)


def test_ranks_that_disagree_fail_on_all() -> None:
    def work(rank: int, group: Any) -> None:
        x = np.ones(1000 + (rank == 2), np.float32)
        group.allreduce(x, x)

    for result in in_threads(4, work, levels="2x2"):
        assert isinstance(result, EngineError)
        assert "1000 float32" in str(result) and "1001 float32" in str(result)


def compare(ranks: int, levels: str, count: int, density: float) -> tuple[dict, dict]:
    """The bytes of the engine and of the simulation for one sum, which each rank verifies."""
    point = Point(count, density, "identical")
    figures = omnihvd.Statistics()
    expected = np.sum([part(point, rank, ranks) for rank in range(ranks)], axis=0)
    summed, read = threading.Barrier(ranks), threading.Barrier(ranks)

    def work(rank: int, group: Any) -> dict:
        x = part(point, rank, ranks)
        group.allreduce(x, x)
        summed.wait(60)
        real = figures.read()
        read.wait(60)  # before anybody says good-bye, which is a message, too
        np.testing.assert_array_equal(x, expected)
        return real

    real = all_well(in_threads(ranks, work, streams=1, levels=levels))[0]
    fans = protocol.fans_of(levels, ranks, 0)
    simulated = simulate(ranks, point, Network(1e9, 0, streams=1), fans=fans)
    return real, simulated


@pytest.mark.parametrize(
    ("ranks", "levels"),
    [
        (4, "2x2"),
        (9, "3x3"),
        (7, "3x3"),
        (8, "8"),
        (32, "8x4"),
        (64, "8x8"),
    ],
)
def test_messages_are_those_of_the_simulation(ranks: int, levels: str) -> None:
    """Frame by frame; how many of them share a message depends on who is how fast."""
    real, simulated = compare(ranks, levels, ranks * 2 * 56 * BLOCK + 17, 1.0)
    assert real["frames_sent"] == simulated["frames"]
    assert real["messages_sent"] == pytest.approx(simulated["messages"], rel=0.2)
    assert simulated["bytes"] == pytest.approx(real["bytes_sent"], rel=0.002)
    assert real["result_blocks"] == ranks * simulated["union_blocks"]


def test_sparse_sums_send_the_bytes_of_the_simulation() -> None:
    real, simulated = compare(8, "2x4", 5000 * BLOCK, 0.1)
    assert real["frames_sent"] == simulated["frames"]
    assert simulated["bytes"] == pytest.approx(real["bytes_sent"], rel=0.02)
    assert real["result_blocks"] == 8 * simulated["union_blocks"]


@pytest.mark.parametrize(
    ("levels", "ranks", "dedicated", "fans"),
    [
        ("auto", 1, 0, [2]),
        ("auto", 3, 0, [3]),
        ("auto", 65, 0, [65]),
        ("auto", 66, 0, [9, 8]),
        ("auto", 1024, 0, [32, 32]),
        ("auto", 4096, 0, [16, 16, 16]),
        ("auto", 4096, 8, [4096]),
        ("16x16", 256, 8, [16, 16]),
        ("16x16", 16, 0, [16]),
        ("16x16", 17, 0, [16, 16]),
        ("2x2x2", 3, 0, [2, 2]),
    ],
)
def test_levels_are_as_the_setting_has_them(
    levels: str, ranks: int, dedicated: int, fans: list[int]
) -> None:
    assert protocol.fans_of(levels, ranks, dedicated) == fans
    seats = protocol.Seats(ranks, dedicated, fans)
    if not dedicated:
        assert max(len(seats.peers(r)) for r in range(0, ranks, max(1, ranks // 8))) <= 64


@pytest.mark.parametrize(
    "levels", ["", "1", "x", "4x", "x4", "4x1", "4 4", "-2", "4x4x", "999999999"]
)
def test_words_that_are_no_levels_are_refused(levels: str) -> None:
    with pytest.raises(RuntimeError, match="not allowed"):
        protocol.fans_of(levels, 16, 0)


@given(ranks=st.integers(1, 40), most=st.integers(2, 12), dedicated=st.integers(0, 3))
def test_peers_are_mutual_and_hear_of_each_death(ranks: int, most: int, dedicated: int) -> None:
    """Whoever dies, its peers, who see it, and whom these tell, are all others."""
    seats = protocol.Seats(ranks, dedicated, protocol.Tree.fans_for(ranks, most))
    nodes = range(ranks + dedicated)
    peers = {node: set(seats.peers(node)) for node in nodes}
    for node in nodes:
        assert node not in peers[node] and all(node in peers[peer] for peer in peers[node])
    for dead in nodes:
        reached: set[int] = set()
        edge = [*peers[dead]]
        while edge:
            node = edge.pop()
            reached.add(node)
            edge.extend(peers[node] - reached - {dead})
        assert reached == set(nodes) - {dead}


@given(ranks=st.integers(1, 200), most=st.integers(2, 20), windows=st.integers(0, 1000))
def test_shares(ranks: int, most: int, windows: int) -> None:
    fans = protocol.Tree.fans_for(ranks, most)
    seats = protocol.Seats(ranks, 0, fans)
    shares = seats.shares(windows)
    assert shares <= seats.most_shares == ranks
    if seats.levels == 1:
        assert shares == ranks
    else:
        assert shares >= min(ranks, fans[0])
        assert shares <= max(fans[0], windows)
    chances = {
        seats.chance_of(level, rank) for level in range(1, seats.levels) for rank in range(ranks)
    }
    tree = protocol.Tree(ranks, fans)
    assert len(chances) == sum(
        tree.group_of(level, ranks - 1) + 1 for level in range(1, seats.levels)
    )
    for level in range(1, seats.levels + 1):
        assert seats.at(seats.number(level, shares - 1)) == (level, shares - 1)
    with pytest.raises(RuntimeError, match="malformed message: no such aggregator"):
        seats.at(seats.levels * ranks)
