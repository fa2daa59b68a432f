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


@pytest.mark.parametrize(
    ("launcher", "why"),
    [
        (["no-such-launcher"], "no program no-such-launcher"),
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
