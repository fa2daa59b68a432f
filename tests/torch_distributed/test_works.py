"""Programs that give a sum's work to PyTorch's C++: the same results."""

from __future__ import annotations

import re

import pytest
from jobs import run
from processes import free_port


@pytest.mark.parametrize(
    ("ranks", "way"), [(2, "stream"), pytest.param(3, "auto", marks=pytest.mark.slow)]
)
def test_results_are_those_of_gloo(ranks: int, way: str) -> None:
    env = {"OMNIHVD_MIN_BYTES": "1", "OMNIHVD_WAY": way, "LATER_PORT": str(free_port())}
    for ended in run("works.py", ranks, env=env):
        assert "all well" in ended.output


@pytest.mark.parametrize("way", ["stream", "auto"])
def test_a_barrier_waits_for_earlier_sums(way: str) -> None:
    for ended in run("barrier.py", 2, env={"OMNIHVD_WAY": way}):
        assert "all well" in ended.output


@pytest.mark.parametrize("way", ["stream", "original"])
def test_a_barrier_in_flight_keeps_nobody(way: str) -> None:
    """Nor does one with a time-out wait for a late rank for longer."""
    for rank, ended in enumerate(run("barrier_in_flight.py", 3, env={"OMNIHVD_WAY": way})):
        assert "all well" in ended.output
        if rank < 2:
            seconds = re.findall(r"^late after (\S+) s: ", ended.output, re.M)
            assert seconds and 2 <= float(seconds[0]) < 5, ended.output
