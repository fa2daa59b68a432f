"""benchmarks/soak.py: when a job for hours fails."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import soak

POPEN = subprocess.Popen


def looks(descriptors: list[int], threads: list[int]) -> list[dict[str, Any]]:
    speeds = {"small_us": 1.0, "large_ms": 1.0, "copy_ms": 1.0}
    return [
        {
            **{"s": 30.0 * n, **speeds},
            "ranks": [{"own_mb": 1.0, "shared_mb": 1.0, "descriptors": d, "threads": t}] * 2,
        }
        for n, (d, t) in enumerate(zip(descriptors, threads))
    ]


def soaked(
    monkeypatch: pytest.MonkeyPatch, file: Path, taken: int, found: list[dict[str, Any]]
) -> None:
    """A job of ranks that say only that."""
    line = json.dumps({"sums": 100, "groups": 10, "taken": taken, "looks": found})

    def says(*_: object, **options: Any) -> Any:
        return POPEN([sys.executable, "-c", f"print({line!r})"], **options)

    monkeypatch.setattr(soak.subprocess, "Popen", says)
    monkeypatch.setattr(soak, "source", dict)
    monkeypatch.setattr(sys, "argv", ["soak.py", "--json", str(file)])
    monkeypatch.delenv("RANK", raising=False)
    soak.main()


STEADY = looks([50] * 9, [12] * 9)


def test_a_job_without_a_sum_of_omnihvd_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "soak.json"
    file.write_text("[]")
    with pytest.raises(
        SystemExit, match=r"omnihvd made no sum, so .*soak.json is as it was: `omni"
    ):
        soaked(monkeypatch, file, 0, STEADY)
    assert file.read_text() == "[]"
    soaked(monkeypatch, file, 90, STEADY)
    assert [part["taken"] for part in json.loads(file.read_text())] == [90]


@pytest.mark.parametrize(
    ("descriptors", "threads", "said"),
    [
        ([50, 50, 51, 52, 52, 52, 52, 52, 52], [12] * 9, ""),
        (list(range(50, 59)), [12] * 9, "descriptors 51.5 -> 57.5"),
        ([50] * 9, [12, 12, 12, 13, 13, 14, 15, 15, 15], "threads 12 -> 15"),
    ],
)
def test_descriptors_and_threads_that_grow_are_a_leak(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    descriptors: list[int],
    threads: list[int],
    said: str,
) -> None:
    file = tmp_path / "soak.json"
    if said:
        with pytest.raises(SystemExit, match=f"a leak, from the first quarter.*: {said}"):
            soaked(monkeypatch, file, 90, looks(descriptors, threads))
    else:
        soaked(monkeypatch, file, 90, looks(descriptors, threads))
    assert json.loads(file.read_text())  # the figures of a leak are of use
