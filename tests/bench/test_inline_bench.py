"""The points of benchmarks/inline.py, of aggregators in the data path, and its tables."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
from benchmarks import inline
from benchmarks.tables import inline as tables


def point(row: inline.Row, zeros: float, dense: bool, seconds: list[float]) -> dict[str, Any]:
    counts = {"machine_s": 0.1, "ns_per_element": 2.0, "worker_s_per_gb": 3.0}
    counts |= {"again": 5.0, "sent": 100.0, "median": 0.0}
    of = {**row._asdict(), "zeros": zeros, "dense": dense, "seconds": seconds}
    return {**of, **counts, "verified": None}


def test_frames_are_lost_where_integers_are_added_and_nowhere_else() -> None:
    rows = inline.rows([0.0, 0.01])
    assert len(set(rows)) == len(rows)
    assert {row.plane for row in rows if row.loss} == {"socket", "xdp", "af-xdp"}
    assert {row.arithmetic for row in rows if row.loss} == {"integer"}
    assert inline.Row("xdp", inline.OF_FLOATS) in rows
    assert inline.rows([0.0]) == [row for row in rows if not row.loss]


def test_rounds_are_one_point() -> None:
    """The median is of all samples, not of the rounds' medians."""
    first = point(inline.Row("xdp", "integer"), 0.9, False, [1.0, 2.0, 9.0])
    second = {**first, "seconds": [3.0, 8.0, 9.0], "again": 7.0}
    both = inline.of_rounds([first, second])
    assert both["seconds"] == [1, 2, 9, 3, 8, 9] and both["median"] == 5.5
    assert both["again"] == 6 and both["zeros"] == 0.9 and both["joined"] is False
    assert both["dense"] is False and both["verified"] is None


def test_tables_of_workers_and_of_lost_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [
        inline.of_rounds([point(row, zeros, dense, [0.01 * (1 + row.loss)])])
        for row in inline.rows([0.5])
        for zeros, dense in tables.COLUMNS
    ]
    monkeypatch.setattr(tables, "load", lambda name: {"points": points})
    shown = tables.inline().splitlines()
    assert shown[0].endswith("| machine | a worker, s/GB |")
    assert shown[2] == "| socket | integer" + 5 * " | 10.0" + " | 2.00 | 100 | 3.00 |"
    assert len(shown) == 2 + len(inline.rows([]))
    lost = tables.losses().splitlines()
    assert len(lost) == 2 + 2 * 3
    assert lost[-1] == "| 50% | af-xdp" + 5 * " | 15.0 (5.00%)" + " |"
