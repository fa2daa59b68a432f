"""benchmarks/under_fire.py: an elastic job that lives through fault after fault."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import under_fire

ROOT = Path(__file__).parents[2]


def steps(since: float, until: float, number: int, size: int) -> list[under_fire.Event]:
    """One each second."""
    whens = range(int(since), int(until))
    return [["step", w + 0.5, number + n, size, w, 0.1] for n, w in enumerate(whens)]


def test_what_a_kill_costs() -> None:
    """Ten quiet seconds; an error 1 s after the kill, 2 s of Horovod's, 4 s of it later."""
    survivor = [["up", -1.0, 7], *steps(0, 10, 1, 3), ["fails", 11.0, "lost rank 1"]]
    survivor += [["begins", 13.0, 2], *steps(13, 16, 11, 2), ["changes", 16.0]]
    survivor += [["begins", 20.0, 3], *steps(20, 30, 13, 3)]  # step 13 is done again
    killed = [["up", -1.0, 8], *steps(0, 10, 1, 3)]
    again = [["up", 18.0, 9], ["begins", 20.0, 3], *steps(20, 30, 13, 3)]
    fault = {"kind": "kill", "host": "a", "at": 10.0, "over": 10.0}
    found = under_fire.figures([survivor, killed, again], 0.0, [fault])
    assert found["faults"][0] == {
        **{"kind": "kill", "host": "a", "at": 10.0, "error": "lost rank 1", "noticed_s": 1.0},
        **{"reset_s": 2.0, "restarts_s": 6.0, "step_s": 3.5, "whole_s": 10.5},
    }
    assert found["steps_per_s"] == [1.0, round(12 / 19.5, 2)]
    assert found["kept"] == pytest.approx((2 * 2 + 10 * 3) / 19.5 / 3, abs=1e-4)
    assert found["kept_apart"] == pytest.approx(12 / 13.5, abs=1e-4)


@pytest.mark.parametrize(
    ("words", "taken", "said"), [([], 0, "omnihvd made no sum"), ([], 9, ""), (["--plain"], 0, "")]
)
def test_a_job_without_a_sum_of_omnihvd_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], taken: int, said: str
) -> None:
    file = tmp_path / "found.json"
    found = {"wrong": 0, "sums": 9, "taken": taken}
    monkeypatch.setattr(under_fire, "run", lambda _: found)
    monkeypatch.setattr(under_fire, "source", dict)
    monkeypatch.setattr(sys, "argv", ["under_fire.py", *words, "--json", str(file)])
    if said:
        with pytest.raises(SystemExit, match=f"{said}, so .*found.json is as it was: `omnihvd ch"):
            under_fire.main()
    else:
        under_fire.main()
    assert file.exists() == (not said)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_minute_under_fire(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    words = ["--quiet", "10", "--every", "12", "--faults", "5", "--json", str(file)]
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "under_fire.py", *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(file.read_text())["omnihvd"]
    assert found["wrong"] == 0 and found["taken"] > found["sums"] / 2
    kills = [fault for fault in found["faults"] if fault["kind"] == "kill"]
    assert len(kills) == 4
    assert all(fault["error"] and fault["noticed_s"] < 5 for fault in kills)
    assert statistics.median(fault["step_s"] for fault in kills) < 5
