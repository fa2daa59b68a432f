"""The evaluation of compressors: how its jobs are started, and what becomes of plain Horovod's."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
pytest.importorskip("torch")
from benchmarks.evaluation import report, run  # noqa: E402


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "evaluation").mkdir()
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    monkeypatch.setattr(report, "write", lambda: None)
    return tmp_path


def started(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["run.py", *words])
    run.main()


def test_plain_horovod_has_the_faster_setting(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = dict(zip((setting.name for setting in run.BEST), (0.3, 0.2)))
    seen = []

    def launch(given: Any, env: Any, ranks: int, rate: str, setting: Any = run.AS_IT_IS) -> None:
        ((method, seed),) = given["pieces"]
        seen.append((method, setting.name, rate, env == run.OFF))
        piece = {"method": method, "seed": seed, "step_seconds": seconds.get(setting.name, 0.1)}
        report.add(Path(given["file"]), {**piece, "bytes": len(seen)})

    monkeypatch.setattr(run, "_launch", launch)
    monkeypatch.setattr(run.os, "geteuid", lambda: 0)
    report.save(results / "evaluation" / "words-1gbit.json", [{"method": "dgc", "seed": 0}])
    started(monkeypatch, "1gbit", "--task", "words", "--method", "none", "horovod", "--seeds", "1")
    first, second = seconds
    assert [one[1] for one in seen if one[0] == "horovod"] == [first, second]
    assert all(without == (method == "horovod") for method, _, _, without in seen)
    pieces = {p["method"]: p for p in report.pieces("words", "1gbit")}
    assert set(pieces) == {"dgc", "none", "horovod"}
    best = {"setting": second, "step_seconds": 0.2, "bytes": 2, "tried": seconds}
    assert pieces["horovod"] == {"method": "horovod", "seed": 0, **best}


def test_plain_horovods_trials_that_run_out_of_time_add_nothing(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "_launch", lambda *_: None)
    monkeypatch.setattr(run.os, "geteuid", lambda: 0)
    started(monkeypatch, "10gbit", "--task", "words", "--method", "horovod", "--minutes", "0")
    assert report.pieces("words", "10gbit") == []


def test_a_job_without_links_has_what_mpirun_needs(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may run it, and finds the mpirun that is beside this Python."""
    calls = []
    monkeypatch.setattr(subprocess, "run", lambda command, **given: calls.append(given))
    monkeypatch.setenv("PATH", "/usr/bin")
    started(monkeypatch, "quality", "--task", "words", "--method", "none", "--seeds", "1")
    ((given),) = calls
    env = given["env"]
    assert env["OMPI_ALLOW_RUN_AS_ROOT"] == env["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] == "1"
    assert env["PATH"].split(os.pathsep) == [str(Path(sys.executable).parent), "/usr/bin"]
    assert env["OMNIHVD_WAY"] == "stream" and given["check"]


def test_parts_with_links_say_at_once_that_they_need_root(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "_launch", lambda *_: pytest.fail("a part has begun"))
    monkeypatch.setattr(run.os, "geteuid", lambda: 1000)
    with pytest.raises(SystemExit):
        started(monkeypatch)
    said = capsys.readouterr().err
    assert "1gbit and 10gbit: hosts with links need root. Use sudo, or name other parts: " in said
    assert said.rstrip().endswith("quality momentum adam sidco cost report")


def test_quality_has_the_standard_deviation_of_a_sample() -> None:
    ends = [1.0, 2.0, 4.0]
    found = report._quality([{"curve": [[1, 9.0], [2, end]]} for end in ends])
    assert found == f"2.3333 ± {statistics.stdev(ends):.4f}"
    assert report._quality([{"curve": [[2, 1.5]]}]) == "1.5000 (one seed)"


def test_a_method_is_compared_with_none_seed_by_seed() -> None:
    def pieces(*ends: float) -> list[dict[str, Any]]:
        return [{"seed": seed, "curve": [[2, end]]} for seed, end in enumerate(ends)]

    none = pieces(4.0, 5.0, 6.0)
    assert report._difference(pieces(4.1, 5.1, 6.1), none) == "+0.1000 ± 0.0000"
    assert report._difference(pieces(4.0, 5.2), none) == "+0.1000 ± 0.1414"
    assert report._difference(pieces(3.5), none) == "-0.5000"
    assert report._difference(none, []) == ""
