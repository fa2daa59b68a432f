"""Reduce-scatters of whole engines: each rank's share of the sum, against closed forms."""

from __future__ import annotations

import threading
import time
import types
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from aggregators import SECRET, addresses, servers
from groups import Meeting, all_well, blocks_of, in_threads, processes, scatter_for_ever, sum_of

from omnihvd.engine import EngineError, session

BLOCK = 256
SOON_S = 15
COUNTS = [0, 1, BLOCK - 1, BLOCK + 1, 3 * BLOCK, 64 * BLOCK + 1, 300_007]


def cuts(count: int, size: int) -> list[list[int]]:
    """Shares of a tensor: about alike, cut within blocks; nothing for some; all for the last."""
    alike = [count // size + (rank < count % size) for rank in range(size)]
    some = [0] * size
    some[size // 2] = count // 3
    some[-1] += count - count // 3
    return [alike, some, [0] * (size - 1) + [count]]


def check(rank: int, group: Any, count: int, density: float, shares: list[int],
          dtype: str = "float32") -> None:  # fmt: skip
    x = blocks_of(rank, count, density, dtype)
    before = x.copy()
    begin = sum(shares[:rank])
    expected = sum_of(len(shares), count, density, dtype)[begin : begin + shares[rank]]
    out = np.full(shares[rank], 77, x.dtype)
    united = group.reduce_scatter(x, out, shares)
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(x, before)
    assert united > 0 or not sum_of(len(shares), count, density, dtype).any()
    assert united == 0 or (count > 0 and density > 0)
    mine = x[begin : begin + shares[rank]]
    assert group.reduce_scatter(x, mine, shares) == united  # its share in place
    np.testing.assert_array_equal(mine, expected)


@pytest.mark.parametrize(
    ("size", "transport"), [(1, "memory"), (2, "memory"), (5, "memory"), (3, "ucx"), (3, "udp")]
)
def test_sizes_shares_and_densities(size: int, transport: str) -> None:
    def work(rank: int, group: Any) -> None:
        for count in COUNTS:
            for shares in cuts(count, size):
                for density in (0, 0.05, 1):
                    check(rank, group, count, density, shares)

    all_well(in_threads(size, work, transport))


def test_ranks_that_disagree_over_shared_memory_are_told_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An allreduce of as many elements, at any sum."""
    monkeypatch.setenv("OMNIHVD_WAY", "shared")
    monkeypatch.setenv("OMNIHVD_TIMEOUT", "20")
    meeting = Meeting(2)

    def work(rank: int) -> str:
        library = types.SimpleNamespace(allgather=meeting.allgather(rank))
        ranks = session.Communicator(rank, 2)
        ranks.meet(library.allgather)
        x, out = np.ones(200_000, np.float32), np.empty(100_000, np.float32)
        ranks.sum(x.ctypes.data, x.size, "float32", library)  # the ranks compare the first sum
        try:
            if rank:
                ranks.reduce_scatter(x.ctypes.data, out.ctypes.data, out.size, "float32", library)
            else:
                ranks.sum(x.ctypes.data, x.size, "float32", library)
        except EngineError as why:
            return str(why)
        return "no error"

    with ThreadPoolExecutor(2) as threads:
        for said in threads.map(work, range(2)):
            assert "the ranks disagree" in said and "a share for each rank" in said


def refused(rank: int, group: Any) -> None:
    x, out = np.ones(1000, np.float32), np.empty(250, np.float32)
    with pytest.raises(EngineError, match="are dedicated or have levels cannot reduce-scatter"):
        group.reduce_scatter(x, out, [250] * 4)


def test_aggregators_above_others_refuse() -> None:
    all_well(in_threads(4, refused, levels="2x2"))


def test_dedicated_aggregators_refuse() -> None:
    with servers(1) as started:
        values: dict[str, Any] = {"aggregators": addresses(started), "secret": SECRET}
        all_well(in_threads(4, refused, "ucx", **values))


@pytest.mark.parametrize("dtype", ["float16", "float64", "int8", "uint8", "int32", "int64"])
def test_dtypes(dtype: str) -> None:
    def work(rank: int, group: Any) -> None:
        check(rank, group, 100_003, 0.3, cuts(100_003, 3)[0], dtype)

    all_well(in_threads(3, work))


@pytest.mark.parametrize("more", [{"streams": 3, "slots": 2}, {"deterministic": True}], ids=str)
def test_mixed_with_allreduces(more: dict[str, Any]) -> None:
    def work(rank: int, group: Any) -> None:
        for step, count in enumerate([5000, 100_003, 1, 40_000]):
            x = blocks_of(rank, count, 0.2)
            group.allreduce(x, x)
            np.testing.assert_array_equal(x, sum_of(3, count, 0.2))
            check(rank, group, count, 0.2, cuts(count, 3)[step % 3])

    all_well(in_threads(3, work, message_bytes=2048, scan_ahead=3, **more))


@pytest.mark.parametrize("arithmetic", ["integer", "fpisa"])
def test_in_other_numbers(arithmetic: str) -> None:
    def work(rank: int, group: Any) -> None:
        check(rank, group, 100_003, 0.3, cuts(100_003, 3)[0])

    all_well(in_threads(3, work, arithmetic=arithmetic))


def test_half_of_the_bytes_go_and_one_call_is_counted() -> None:
    size, share = 3, 1200 * BLOCK
    count = size * share
    spent: list[dict[str, int]] = []

    def work(rank: int, group: Any) -> None:
        x, out = blocks_of(rank, count, 0.5), np.empty(share, np.float32)
        for reduce in (
            lambda: group.allreduce(x, np.empty_like(x)),
            lambda: group.reduce_scatter(x, out, [share] * size),
        ):
            wait()
            before = session.stats()
            wait()
            reduce()
            wait()
            after = session.stats()
            if rank == 0:
                spent.append({k: after[k] - before[k] for k in after if isinstance(after[k], int)})

    wait = threading.Barrier(size, timeout=30).wait
    all_well(in_threads(size, work))
    whole, half = spent
    for name in ("calls", "bytes_in", "nonzero_blocks"):
        assert half[name] == pytest.approx(whole[name], abs=size), name
    assert half["ring_bytes"] == pytest.approx(whole["ring_bytes"] / 2, abs=size * size)
    # An allreduce also brings the union of blocks: more than any rank has.
    assert half["bytes_sent"] < 0.45 * whole["bytes_sent"]


def test_ranks_that_disagree_are_told_so() -> None:
    def work(rank: int, group: Any) -> None:
        x = blocks_of(rank, 90_000, 0.5)
        if rank == 1:
            group.allreduce(x, x)
        else:
            group.reduce_scatter(x, np.empty(30_000, np.float32), [30_000] * 3)

    for why in in_threads(3, work):
        assert isinstance(why, EngineError)
        assert "the ranks disagree" in str(why) and "30000 float32 for rank" in str(why)


def test_not_where_aggregators_have_levels() -> None:
    def work(rank: int, group: Any) -> None:
        x = blocks_of(rank, 80_000, 0.5)
        with pytest.raises(EngineError, match="aggregators that are dedicated or have levels"):
            group.reduce_scatter(x, np.empty(20_000, np.float32), [20_000] * 4)
        group.allreduce(x, x)
        np.testing.assert_array_equal(x, sum_of(4, 80_000, 0.5))

    all_well(in_threads(4, work, levels="2x2"))


def test_a_share_too_few_is_refused() -> None:
    def work(rank: int, group: Any) -> None:
        x = blocks_of(rank, 60_000, 0.5)
        with pytest.raises(EngineError, match="a reduce-scatter needs one share for each rank"):
            group.reduce_scatter(x, np.empty(15_000, np.float32), [15_000] * 4)
        with pytest.raises(ValueError, match="have as many elements as shares says"):
            group.reduce_scatter(x, np.empty(20_000, np.float32), [20_000, 20_000, 19_999])

    all_well(in_threads(3, work))


def test_a_killed_rank_is_named_by_all_survivors() -> None:
    with processes(3, scatter_for_ever) as ranks:
        ranks.gather()
        for rank in range(3):
            ranks.expect(rank, "ready")
        time.sleep(0.5)
        ranks.processes[1].kill()
        for rank in (0, 2):
            assert "rank 1 (" in ranks.expect(rank, "sum failed", SOON_S)


def test_a_late_rank_is_named() -> None:
    def work(rank: int, group: Any) -> None:
        if rank == 2:
            time.sleep(3)
        group.reduce_scatter(np.ones(90_000, np.float32), np.empty(30_000, np.float32),
                             [30_000] * 3)  # fmt: skip

    for why in in_threads(3, work, timeout_s=1.0)[:2]:
        assert "a reduce of 30000 float32 for rank" in str(why) and "waiting for rank 2" in str(why)
