"""`python -m simulator` says how long it takes."""

from __future__ import annotations

import time
from typing import Any

import pytest

from benchmarks.bench.report import duration_text
from omnihvd.bench.patterns import Point
from simulator import command, duration
from simulator.model import Network, simulate

FAST = Network(11.8e9)
SLOW = Network(118e6)
JOBS: list[tuple[int, Point, Network, dict[str, Any]]] = [
    (8, Point(5_000_000, 1.0), FAST, {}),
    (8, Point(5_000_000, 0.01), SLOW, {}),
    (64, Point(2_500_000, 0.1), FAST, {}),
    (64, Point(2_500_000, 0.01), SLOW, {}),
    (64, Point(2_500_000, 0.1, "identical"), FAST, {}),
    (64, Point(2_500_000, 0.01, "zipf"), FAST, {}),
    (64, Point(2_500_000, 0.1), FAST, {"dedicated": 8}),
    (200, Point(250_000, 0.01), FAST, {}),
    (256, Point(250_000, 0.1), FAST, {"fans": (16, 16)}),
    (512, Point(100_000, 0.01), SLOW, {"fans": (8, 64)}),
]


@pytest.mark.parametrize(("ranks", "point", "network", "more"), JOBS)
def test_messages_are_foretold(
    ranks: int, point: Point, network: Network, more: dict[str, Any]
) -> None:
    foretold = duration.messages(ranks, point, network, **more)
    sent = simulate(ranks, point, network, **more)["messages"]
    assert 0.5 < foretold / sent < 2, (foretold, sent)


@pytest.mark.slow
def test_the_time_is_foretold() -> None:
    """In seconds of the processor, since others may use it, too."""
    ranks, point = 512, Point(2_500_000, 0.01)
    duration.message_s.cache_clear()
    foretold = duration.seconds(duration.messages(ranks, point, FAST))
    begin = time.process_time()
    simulate(ranks, point, FAST)
    took = time.process_time() - begin
    assert 0.5 < foretold / took < 2, (foretold, took)


def test_it_is_said_before_the_start_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--ranks", "16", "--bytes", "1MB", "--densities", "0.05"]) == 0
    said = capsys.readouterr().err
    assert said.startswith("this takes about 1 s, most of it for ") and "16 ranks" in said
    assert "(56% of the blocks on any rank" in said and "make it short" in said


def test_long_times_are_said_in_their_units() -> None:
    texts = [duration_text(s) for s in (0.2, 80, 100, 5000, 7300)]
    assert texts == ["1 s", "80 s", "2 minutes", "83 minutes", "2 hours"]
