"""The engine's trace of a process that sums without a launcher."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from test_statistics import new_process

SUMS = """
import sys
sys.path.insert(0, FOLDER)
from groups import all_well, blocks_of, in_threads, session

def work(rank, group):
    for _ in range(2):
        x = blocks_of(rank, 100_000, 0.5)
        group.allreduce(x, x)

all_well(in_threads(2, work, streams=1, message_bytes=8192, slots=2, scan_ahead=8))
session.write_trace()
"""


def test_the_rounds_of_a_slot_follow_one_another(tmp_path: Path) -> None:
    """Each begins when this rank has contributed, or has had the result before it. Nothing is said
    of lost spans."""
    path = tmp_path / "trace.json"
    code = SUMS.replace("FOLDER", repr(str(Path(__file__).parent)))
    assert new_process(code, OMNIHVD_TRACE=str(path)).stderr == ""
    rounds: dict[tuple[Any, ...], list[tuple[float, float]]] = defaultdict(list)
    for event in json.loads(path.read_text()):
        if event["name"] == "round":
            place = event["tid"], event["args"]["aggregator"], event["args"]["slot"]
            rounds[place].append((event["ts"], event["ts"] + event["dur"]))
    assert len(rounds) == 2 * 2 * 2  # ranks, aggregators, slots
    for spans in rounds.values():
        assert len(spans) >= 2 * 5
        for (_, end), (begin, _) in zip(sorted(spans), sorted(spans)[1:]):
            assert begin >= end - 0.002  # nanoseconds are rounded
