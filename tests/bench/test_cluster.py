"""`omnihvd bench -- LAUNCHER`: on the user's cluster, by the user's launcher."""

from __future__ import annotations

import json
import sys
import sysconfig
from pathlib import Path

import pytest

from omnihvd.bench import command, patterns, rank

TORCHRUN = [f"{sysconfig.get_path('scripts')}/torchrun", "--standalone", "--nproc-per-node"]


def test_it_measures_by_the_users_launcher(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "times.json"
    options = ["--sizes", "64K", "--seconds", "0.02", "--timeout", "60", "--json", str(file)]
    assert command.main([*options, "--", *TORCHRUN, "3"]) == 0
    points = json.loads(file.read_text())
    assert [(p["count"], p["density"], p["ranks"]) for p in points] == [
        (16384, density, 3) for density in command.DENSITIES
    ]
    assert all(p["omnihvd"]["runs"] >= rank.LEAST for p in points)
    said = capsys.readouterr().out
    assert "2 jobs, about" in said and said.count("(original: as it is)") == 3


def test_the_original_is_measured_without_omnihvd(tmp_path: Path) -> None:
    """Each rank runs a module of omnihvd's, which would intercept its sums."""
    seen = tmp_path / "seen"
    words = [*TORCHRUN, "1", "-m", command.PROGRAM]
    env = {"OMNIHVD_STATS": str(seen)}  # written where sums are intercepted
    for backend, theirs in ((("gloo", {"OMNIHVD_ENABLE": "0"})), ("omnihvd-torch", {})):
        plan = {"seconds": 0, "backend": backend, "env": {**env, **theirs}, "points": [[65536, 1]]}
        command.job(words, plan, timeout=60)
        assert seen.exists() == (backend != "gloo")


def test_jobs_of_the_original_switch_omnihvd_off(monkeypatch: pytest.MonkeyPatch) -> None:
    plans = []

    def job(_: list[str], plan: dict, timeout: float) -> list[dict]:
        plans.append(plan)
        points = [{"count": size // 4, "density": d} for size, d in plan["points"]]
        return [{**point, "ranks": 2, "median": 1.0} for point in points]

    monkeypatch.setattr(command, "job", job)
    for launcher in (["torchrun"], ["mpirun"]):
        command.measure(command.parser().parse_args([]), launcher)
    switches = [(plan["backend"], plan["env"]["OMNIHVD_ENABLE"]) for plan in plans]
    assert switches[:2] == [("omnihvd-torch", "1"), ("gloo", "0")]
    assert switches[2:] == [("omnihvd", "1"), *[("horovod", "0")] * 3]


@pytest.mark.parametrize(
    ("launcher", "why"),
    [
        (["no-such-launcher"], "no program no-such-launcher"),
        ([__file__], "test_cluster.py may not be run: name a launcher"),
        ([sys.executable, "-c", "import time; time.sleep(60)"], "the job took over 9 s "),
        ([sys.executable, "-c", "print('the reason')"], "the job failed: .*\nthe reason"),
        ([sys.executable, "-c", "input()"], "the job failed"),
    ],
)
def test_a_job_without_figures_is_named(launcher: list[str], why: str) -> None:
    with pytest.raises(command.JobFailed, match=f"(?s){why}"):
        command.job(launcher, {"points": [[65536, 1.0]]}, timeout=9)


def test_a_launcher_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        command.main(["--seconds", "1"])
    assert "name your launcher after --" in capsys.readouterr().err


def test_the_sum_is_known_in_closed_form() -> None:
    point = patterns.Point(1000, 0.5, memory="new")
    parts = [patterns.part(point, one, 3) for one in range(3)]
    assert patterns.is_total(sum(parts), point, 3) and not patterns.is_total(parts[0], point, 3)
    assert 0 < (sum(parts) == 0).mean() < 0.9


def test_a_job_that_takes_too_long_is_ended_by_its_launcher(tmp_path: Path) -> None:
    launcher, ended = tmp_path / "launcher", tmp_path / "ended"
    trap = f"trap 'touch {ended}; kill $!; exit 1' TERM"
    launcher.write_text(f"#!/bin/sh\n{trap}\nsleep 60 & wait\n")
    launcher.chmod(0o755)
    with pytest.raises(command.JobFailed, match="the job took over"):
        command.job([str(launcher)], {"points": []}, timeout=1)
    assert ended.exists()
