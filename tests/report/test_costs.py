"""The cost model against sums done by hand."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest

from omnihvd.rates import rate_bytes, rate_text
from omnihvd.report import costs
from omnihvd.report.costs import Cost, Machine, Sizes, Takes
from omnihvd.report.predictions import (
    Model,
    Prediction,
    advice,
    best_of,
    bytes_text,
    gentlest,
    time_text,
)

MB = 1e6
SIZES = Sizes(  # 100 MB in 97,656 blocks of 1 KiB, 10% here and 20% on any rank
    *(100 * MB, 10 * MB, 20 * MB, 20 * MB, 97_656),
    *(8 * MB, 16 * MB, 256),
)


@pytest.mark.parametrize(
    ("cost", "sent"),
    [
        (costs.by_ring, 1.5 * 100),
        (costs.by_fp16, 0.75 * 100),
        (costs.by_omnireduce, 0.75 * (10 + 20)),
        (costs.by_dedicated, 10),
        (costs.by_union, 1.5 * (20 + 97_656 / 8e6)),
        (costs.by_rows, 3 * 8 / 256 * 8 + 0.75 * (8 + 16)),
        (costs.by_allgather, 3 * 8 / 256 * (256 + 8)),
    ],
)
def test_bytes_of_four_ranks(cost: object, sent: float) -> None:
    assert cost(SIZES, 4).sent == pytest.approx(sent * MB)  # type: ignore[operator]


def test_compressors() -> None:
    full = SIZES._replace(fullest=100 * MB, union=100 * MB)
    assert costs.by_codec(full, 4, 8).sent == pytest.approx(1.5 * 25 * MB)
    assert costs.by_codec(SIZES, 4, 4).sent == pytest.approx(0.75 * 30 / 8 * MB)
    assert costs.by_block_random(full, 4, 0.1).sent == pytest.approx(0.75 * 20 * MB)
    union = 1 - 0.9**4
    assert costs.by_block_topk(full, 4, 0.1).sent == pytest.approx(0.75 * (0.1 + union) * 100 * MB)
    # 0.469 bits an element say where a tenth of them are
    here = 25e6 * (0.4 + 0.469 / 8)
    there = 25e6 * (4 * union + costs.entropy(union) / 8)
    expected = 0.75 * (here + there)
    assert costs.by_topk_threshold(full, 4, 0.1).sent == pytest.approx(expected, rel=1e-3)
    # Blocks that are zero are not worth choosing.
    assert costs.by_block_random(SIZES, 4, 0.5).sent == pytest.approx(0.75 * 20 * MB)


def test_time_is_the_slowest_of_link_and_processors() -> None:
    slow = Machine(1e8, scan=8e9, move=2.5e9, sum_latency=0)
    cost = Cost(sent=30 * MB, received=20 * MB, looked_at=100 * MB)
    assert costs.takes(cost, slow).seconds == pytest.approx(0.3 / costs.ETHERNET)
    assert costs.takes(cost, slow._replace(link=1e12)).seconds == pytest.approx(0.02)
    assert costs.takes(cost, slow._replace(link=1e12, scan=1e9)) == pytest.approx((0.1, 0))
    assert costs.takes(Cost(0, 0, 100 * MB), slow) == (0, 0)
    # Without cores of their own sums look and move in turn, and computing waits for that.
    shared = slow._replace(link=1e12, scan=1e9, spare_cores=False)
    assert costs.takes(cost, shared) == pytest.approx((0.12, 0.12))
    assert costs.takes(cost, shared._replace(link=1e8)).taken == pytest.approx(0.12)


def test_sums_go_on_while_gradients_are_computed() -> None:
    def step(*sums: tuple[float, float, float], backward: float) -> float:
        return costs.step_seconds([(s[0], Takes(s[1], s[2])) for s in sums], backward, rest=0.05)

    assert step((0.1, 0.2, 0), (0.4, 0.1, 0), backward=0.6) == 0.65
    assert step((0.1, 0.6, 0), (0.4, 0.1, 0), backward=0.5) == pytest.approx(0.85)
    assert step((0.1, 0.2, 0.1), (0.6, 0.2, 0.1), backward=0.6) == pytest.approx(0.95)
    assert step((0.1, 0.2, 0.1), (0.2, 0.1, 0.1), backward=0.6) == pytest.approx(0.85)


def test_packed_blocks() -> None:
    assert costs.packed_bytes(0, 256, 4) == 0
    assert costs.packed_bytes(256, 256, 4) == 1024
    assert costs.packed_bytes(64, 256, 4) == 256 + 32  # a bit for each
    assert costs.packed_bytes(1, 256, 4) == 4 + 10 / 8  # listed


def test_how_figures_are_written() -> None:
    assert rate_bytes("2.5gbit") == rate_bytes("2.5Gbps") == rate_bytes("2.5 Gbit/s") == 312.5e6
    assert rate_text("10Gbps") == "10 Gbit/s" and rate_text("1kbit") == "1 kbit/s"
    for wrong in ("10", "10gb", "0mbit", "fast"):
        with pytest.raises(ValueError, match="is not a rate"):
            rate_bytes(wrong)
    assert [time_text(s) for s in (0.0312, 0.999, 1.234)] == ["31.2 ms", "1.00 s", "1.23 s"]
    assert [bytes_text(n) for n in (40, 5.12e6, 999.9e6)] == ["40 B", "5.12 MB", "1 GB"]


def test_the_best_row_needs_neither_loss_nor_hosts() -> None:
    def best(**seconds: float) -> str:
        return best_of([{"scheme": s, "step_s": t} for s, t in seconds.items()])

    times = {"ring": 12.0, "omnireduce": 9.0, "rows": 7.12, "block_topk": 1.0, "dedicated": 2.0}
    assert best(**times, allgather=6.79) == "allgather"
    assert best(**times, allgather=7.15) == "allgather"  # as fast, without omnihvd
    assert best(**times, allgather=7.3) == "rows"
    assert best(ring=7.0, omnireduce=6.99) == "ring"


def test_where_omnihvd_is_not_needed_the_advice_says_so_and_from_how_many_hosts_it_is() -> None:
    """A table in which each rank has a thousandth of the rows, at random."""
    dense, row = 512e6, 256

    def sizes(block: int, ranks: int) -> Sizes:
        own, union = dense * 0.001, dense * (1 - 0.999**ranks)
        return Sizes(dense, own, union, union, dense / 1024, own, union, row)

    table = SimpleNamespace(name="t", bytes=dense, is_table=True, sparse=False, zero_rows=0.999)
    table.sizes, table.ready_s = sizes, 0.1
    table.density, table.union = lambda b: 0.001, lambda b, ranks: 1 - 0.999**ranks
    timing = SimpleNamespace(alone=0.2, backward=0.1, rest=0.01)
    said = advice(Model([[table]], timing, 4), [table], "1gbit")  # type: ignore[list-item, arg-type]
    assert "use `sparse=True` for `t`, with Horovod's allgather" in said, said
    found = re.search(r"omnihvd is not needed there, but from about (\d+) hosts on it is", said)
    assert found, said
    more = Model([[table]], timing, int(found[1]))  # type: ignore[list-item, arg-type]
    rows, gathered = (more.predict(scheme, "1gbit") for scheme in ("rows", "allgather"))
    assert rows.step_s < 0.95 * gathered.step_s
    assert "with OmniReduce" in advice(more, [table], "1gbit")  # type: ignore[list-item]


def test_of_what_is_lossy_the_gentlest_that_is_fast_enough() -> None:
    def chosen(**seconds: float) -> str:
        of = {s: Prediction(4, "1gbit", s, 0.0, 0.0, t) for s, t in seconds.items()}
        return gentlest(of).scheme

    assert chosen(fp16=1.0, natural=0.99, qsgd4=0.98, block_topk=0.97) == "fp16"
    assert chosen(fp16=2.0, natural=1.1, qsgd4=1.04, block_topk=1.0) == "qsgd4"
    assert chosen(fp16=2.0, natural=1.5, qsgd4=1.5, block_topk=1.0) == "block_topk"


def test_half_precision_gains_less_from_fewer_bits() -> None:
    half = SIZES._replace(element=2)
    assert costs.FORMULAS["fp16"](half, 4).sent == costs.FORMULAS["ring"](half, 4).sent
    assert costs.FORMULAS["natural"](half, 4).sent == pytest.approx(0.75 * 30 / 2 * MB)
