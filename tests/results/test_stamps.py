"""A kept entry of a results file keeps its commit when another part is measured again."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "examples" / "models")]
pytest.importorskip("torch")
from benchmarks import delay_control, papers, stamps, total_budget  # noqa: E402
from benchmarks.bench.source import source  # noqa: E402

OLD = {"date": "2020-01-01", "commit": "0" * 40, "trees": {}, "dirty": False}


def entries_of(path: Path) -> list[dict[str, Any]]:
    content = json.loads(path.read_text())
    assert "commit" not in content
    return list(content["results"])


def test_a_files_stamp_goes_to_the_entries_that_have_none() -> None:
    content = {**OLD, "results": [{"a": 1}, {"a": 2, "commit": "1"}]}
    stamps.hand_down(content, content["results"])  # type: ignore[arg-type]
    assert content == {"results": [{"a": 1, **OLD}, {"a": 2, "commit": "1"}]}
    assert not set(stamps.facts()) & set(stamps.STAMP) and set(source()) == set(stamps.STAMP)


def test_zeros_leave_the_commit_of_quality_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("horovod.torch")
    file = tmp_path / "ncf.json"
    curve = [{"method": "fp16", "seed": 0, "steps": 2, "ranks": 2, "curve": [[2, 0.5]]}]
    links = {"1gbit": {"methods": {}}}
    file.write_text(json.dumps({**OLD, "quality": curve, "links": links}))
    monkeypatch.delitem(sys.modules, "run", raising=False)
    run = importlib.import_module("run")
    words = ["--model", "ncf", "--parts", "zeros", "--hosts", "1", "--steps", "1"]
    monkeypatch.setattr(sys, "argv", ["run.py", *words, "--output", str(tmp_path)])
    monkeypatch.setattr(run.zeros, "measure", lambda *_, **__: ZEROS)
    assert run.main() == 0
    content = json.loads(file.read_text())
    now = source()["commit"]
    assert content["quality"] == [{**curve[0], **OLD}]
    assert content["links"]["1gbit"]["commit"] == OLD["commit"] != now
    assert content["zeros"][0]["commit"] == now and "commit" not in content


SHARES = ("zeros", "zero_blocks", "sum_zeros", "sum_zero_blocks")
ZEROS = {"size": "default", **dict.fromkeys(SHARES, 0.5)}


def test_one_task_leaves_the_commits_of_the_others_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "total_budget.json"
    file.write_text(json.dumps({**OLD, "results": [{"task": "words"}, {"task": "digits"}]}))
    monkeypatch.setattr(total_budget, "RESULT", file)
    monkeypatch.setattr(total_budget, "measure", lambda name, seeds: [{"task": name}])
    monkeypatch.setattr(sys, "argv", ["total_budget.py", "--task", "words"])
    total_budget.main()
    commits = {entry["task"]: entry["commit"] for entry in entries_of(file)}
    assert commits == {"digits": OLD["commit"], "words": source()["commit"]}


def test_one_layout_leaves_the_commits_of_the_others_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("horovod.torch")
    host_order = importlib.import_module("benchmarks.host_order")
    file = tmp_path / "host_order.json"
    there = {"part": "links", "layout": "2x4", "first": "0", "method": "codec"}
    file.write_text(json.dumps({**OLD, "results": [there]}))
    trained = {"method": "codec", "step_s": 1.0, "bytes": 1}
    monkeypatch.setattr(host_order, "RESULT", file)
    monkeypatch.setattr(host_order, "train", lambda *_: [trained])
    words = ["host_order.py", "--part", "links", "--layout", "2x2"]
    monkeypatch.setattr(sys, "argv", words)
    host_order.main()
    old, *new = entries_of(file)
    assert old == {**there, **OLD}
    assert [entry["commit"] for entry in new] == [source()["commit"]] * 2


def test_one_run_leaves_the_commits_of_the_others_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "delay_control.json"
    run = {"name": "none", "seed": 0, "losses": [[0, 1.0]], "steps": 1}
    file.write_text(json.dumps({"scenarios": {"low": {**OLD, "runs": [run]}}}))
    measured = {"losses": [[0, 1.0]], "steps": 1}
    monkeypatch.setattr(delay_control, "RESULTS", file)
    monkeypatch.setattr(delay_control, "measure", lambda *_: measured)
    monkeypatch.setattr(delay_control, "plot", lambda *_: None)
    words = ["delay_control.py", "--scenario", "low", "--only", "none|^delay control$"]
    monkeypatch.setattr(sys, "argv", words)
    delay_control.main()
    content = json.loads(file.read_text())["scenarios"]["low"]
    commits = {run["name"]: run["commit"] for run in content["runs"]}
    assert commits == {"none": OLD["commit"], "delay control": source()["commit"]}
    assert "commit" not in content


def test_one_backend_leaves_the_commits_of_the_others_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "papers.json"
    there = {"backend": "sparcml"}
    file.write_text(json.dumps({"parts": {"1gbit": {"about": OLD, "results": [there]}}}))
    new = {"about": source(), "results": [{"backend": "parallax"}]}
    monkeypatch.setattr(papers, "measure_at", lambda *_: new)
    monkeypatch.setattr(papers, "say", lambda *_: None)
    monkeypatch.setattr(papers, "plot", lambda *_: None)
    papers.measure_rates(["1gbit"], ["parallax"], file)
    part = json.loads(file.read_text())["parts"]["1gbit"]
    assert part["about"]["commit"] == source()["commit"]
    assert part["results"] == [{**there, **OLD}, {"backend": "parallax"}]
