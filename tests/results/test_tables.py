"""Tables compare like with like, and say of how many trainings a figure is."""

from __future__ import annotations

import sys
from math import inf
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
pytest.importorskip("torch")
from benchmarks import delay_control  # noqa: E402
from benchmarks.tables import compression, models  # noqa: E402
from benchmarks.tables.results import spread  # noqa: E402


def run(name: str, seed: int, *losses: float) -> dict[str, Any]:
    """Read every second."""
    return {"name": name, "seed": seed, "losses": [[i, loss] for i, loss in enumerate(losses)]}


FIXED = [run("block_topk 0.1", 0, 9, 9, 1), run("block_topk 0.1", 1, 9, 9, 1)]
SLOW = [run("block_topk 0.03", seed, 9, 9, 9, 9, 1) for seed in range(3)]
CONTROL = [run("delay control", 0, 9, 9, 9, 1), run("delay control", 2, 1)]
GLOBAL = [run("delay control, global_topk", seed, 9, 1) for seed in range(3)]


def test_a_spread_is_a_samples_deviation_or_the_values() -> None:
    assert spread([1.0, 2.0, 3.0], 2) == "2.00 ± 1.00"
    assert spread([1.0, 3.0], 1) == "1.0 and 3.0"
    assert spread([1.0], 1) == "1.0" and spread([], 1) == ""


def test_a_control_is_compared_over_the_seeds_that_all_have() -> None:
    """Seed 0 alone: 3 seconds against 2. Readings are a second apart."""
    assert delay_control.behind(1, CONTROL, [FIXED, SLOW]) == (1.5, 1.0)
    assert delay_control.behind(1, CONTROL[1:], [FIXED, SLOW]) is None  # no common seed
    assert delay_control.behind(1, CONTROL, []) is None
    assert delay_control.behind(0.5, CONTROL, [FIXED]) is None
    assert delay_control.seconds_to(0.5, FIXED[0]) == inf


def test_rows_say_how_many_seeds_they_have_where_others_have_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs = [*FIXED, *SLOW, *CONTROL, *GLOBAL]
    content = {"scenarios": {"low": {"seconds": 20, "runs": runs}}}
    monkeypatch.setattr(compression, "load", lambda _: content)
    monkeypatch.setattr(compression, "TARGETS", {"low": (1, 0.5)})
    _, _, *rows = compression.delay_control_varied().splitlines()
    assert rows == [
        "| block_topk 0.1 | 2.0 (2.0 to 2.0; 2 seeds) | not in 20 s; 2 seeds |",
        "| block_topk 0.03 | 4.0 (4.0 to 4.0) | not in 20 s |",
        "| delay control | 1.5 (0.0 to 3.0; 2 seeds) | not in 20 s; 2 seeds |",
        "| delay control, global_topk | 1.0 (1.0 to 1.0) | not in 20 s |",
        # No fixed ratio of global_topk ran.
        "| delay control, times the best ratio's seconds (readings behind) | 1.50 (1.0) |  |",
    ]
    runs += [run("global_topk 0.1", seed, 9, 9, 1) for seed in range(3)]
    assert "| delay control, global_topk, times the best" in compression.delay_control_varied()


def test_fixed_ratios_of_text_are_of_both_kinds() -> None:
    names = delay_control.names("low")
    assert {"block_topk 0.3", "block_topk 0.003", "global_topk 0.1", "global_topk 0.003"} < {*names}
    assert not [name for name in delay_control.names("mixed") if name.startswith("global_topk")]
    scenario = delay_control.SCENARIOS["low"]
    for name in names[1:]:
        made = repr(delay_control.compressor(name, scenario))
        assert made.startswith("global_topk") == ("global_topk" in name), made


def test_the_script_says_how_far_a_control_is_behind(capsys: pytest.CaptureFixture[str]) -> None:
    delay_control.say(
        "low", [run("block_topk 0.1", 0, 9, 9, 1), run("delay control", 0, 9, 9, 9, 1)]
    )
    assert capsys.readouterr().out.splitlines()[-1] == (
        "low, delay control, to 1.2: 1.50 times as long as the best fixed ratio of block_topk, "
        "1.0 readings of the loss"
    )


@pytest.mark.parametrize("tasks", [("digits",), ("digits", "words", "ratings")])
def test_global_topk_has_a_column_where_all_tasks_have_it(
    tasks: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    error = {"topk_threshold": 1.0, "topk": 3.0, "global_topk": 2.0}
    entries = [
        {"task": task, "method": method, "seed": seed, "sent": 0.01, "quality": 0.5 + seed}
        | {"total_error": error[method] + seed}
        for task in ("digits", "words", "ratings")
        for method in error
        for seed in range(2)
        if method != "global_topk" or task in tasks
    ]
    monkeypatch.setattr(compression, "load", lambda _: {"results": entries})
    heads, _, first, *_ = compression.total_budget().splitlines()
    there = len(tasks) == 3
    assert ("total error, global Top-k over threshold" in heads) == there
    assert first.startswith("| digits, accuracy | " + " / ".join(["1.00%"] * (2 + there)) + " | ")
    assert "| 2.00 to 3.00 |" in first and ("| 1.50 to 2.00 |" in first) == there
    assert first.count("| 0.5000 and 1.5000 ") == 2 + there


def judged(curve: list[tuple[int, float]], pace_s: float) -> dict[str, Any]:
    return {"curve": curve, "reached_s": [pace_s * step for step, _ in curve], "rate": "1gbit"}


def test_quality_in_equal_time_is_between_the_tests() -> None:
    entry = {"method": "fp16", **judged([(6, 0.0), (12, 1.0), (18, 3.0)], 0.5)}
    (curve,) = models._curves({"quality": [entry]})["fp16"]
    assert models._at(curve, 4.5) == 0.5
    assert [models._at(curve, s) for s in (3, 6, 7.5, 9, 9.0000001)] == [0, 1, 2, 3, 3]
    assert models._at(curve, 2.9) is None


def test_quality_by_steps_and_by_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain Horovod at half of the others' pace. Steps that fall to a rate of 0 are not cut."""
    quality = [
        {"method": method, "seed": 0}
        | judged([(1, 0.0), (2, 0.5), (4, 1.0)], 2.0 if method == "horovod" else 1.0)
        for method in models.METHODS
    ]
    content = {"quality": quality}
    monkeypatch.setattr(models, "results", lambda _: {"ncf": content, "bert": content})
    _, _, *rows = models.quality().splitlines()
    assert [row.split(" | ")[:3] for row in rows] == [
        ["| ncf, AUC: 4 steps", "1.000", "1.000"],
        ["| the same, 4 seconds at 1 Gbit/s", "0.500", "1.000"],
        ["| bert, accuracy: 4 steps", "1.000", "1.000"],
    ]
    _, _, first, _ = models.to_quality().splitlines()
    assert first.startswith("| ncf, AUC 0.000 | 2.0 | 1.0 | 1.0 |")
