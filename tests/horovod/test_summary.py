"""The line at the end of a job."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from launch import launch

HERE = Path(__file__).parent / "on_ranks"
KINDS = ("sparse", "dense", "blocks", "uneven", "elements", "scatter")


def found(way: str) -> list[dict[str, Any]]:
    env = {"OMNIHVD_WAY": way, "OMNIHVD_MIN_BYTES": "1024"}
    ranks = launch([HERE / "between.py"], 3, env=env, timeout=120).ranks
    return [json.loads(re.findall("FOUND (.*)", rank)[0]) for rank in ranks]


def test_what_would_travel_between_hosts_is_what_streaming_sends() -> None:
    """A sum over shared memory sends nothing: the summary says what the fullest rank would send."""
    streamed, shared = found("stream"), found("shared")
    wrong = {}
    for kind in KINDS:
        sent = max(rank[kind]["sent"] for rank in streamed)
        said = {rank[kind]["between"] for rank in shared}
        assert len(said) == 1, "ranks differ"
        if not 1 / 1.3 < said.pop() / sent < 1.3:
            wrong[kind] = (sent, shared[0][kind]["between"])
    assert not wrong
    line = shared[0]["sparse"]["summary"]
    assert f"would send {shared[0]['sparse']['between']:.1%} of a ring between hosts" in line
    assert "non-zero blocks: " in line


@pytest.mark.parametrize("way", ["original", "stream"])
def test_three_numbers_come_first_and_the_rest_is_info(way: str) -> None:
    for level in ("warning", "info"):
        env = {"OMNIHVD_WAY": way, "OMNIHVD_LOG": level}
        job = launch([HERE / "import_order.py", "omnihvd"], 2, env=env)
        (line,) = re.findall("sums taken: 1, .*", job.ranks[0])
        first = re.match(r"sums taken: 1, of [\d.]+ MB; sent [\d.]+% of a ring; [\d.]+ s", line)
        assert first, line
        assert len(line) <= 100 or level == "info"
        assert ("; sent 4.0 MB" in line) == (level == "info"), line
        looked = level == "info" and way == "stream"  # nobody looked, so nothing is known
        assert ("non-zero blocks: " in line) == looked, line
