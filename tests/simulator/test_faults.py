"""Random jobs over a bad network: sums are right or not there at all, whatever happens."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from omnihvd.engine import EngineError
from simulator import _core, faults

JOBS = 400  # some seconds, on an idle core


def test_no_seed_fails() -> None:
    outcome = faults.run(0, JOBS, 0, None)
    assert outcome["failure"] is None
    counts = outcome["counts"]
    assert counts["jobs"] == JOBS and counts["sums"] > counts["jobs"]
    for fault in (*faults.FAULTS, "joined", "not_joined", "failed"):
        assert counts[fault] > 0, fault
    assert counts["failed"] < counts["sums"] / 4


@pytest.mark.parametrize("seed", [0, 7, 238, 287, 2**63])
def test_a_seed_says_all(seed: int) -> None:
    for long_sums in (False, True):
        assert _core.run_bad_session(seed, long_sums) == _core.run_bad_session(seed, long_sums)


@pytest.mark.parametrize(
    "seed",
    [
        *(76, 109),  # a peer that had left failed an empty sum
        *(32, 5),  # who could not join was told good-bye
        *(300, 1383),  # what failed one rank dedicated aggregators did not tell the others
        4751,  # an error of who was stopped itself named nobody
        *(686, 1604),  # who had not joined yet was told of a failure, and never again
        2022541,  # the same, by dedicated aggregators, which were told before all had joined
        604,  # a clock that was put forward by a minute ended a sum
        *(10012701, 10096832),  # rounds of 0.2 to 0.4 s on very bad networks passed the time-out
        10097742,  # four such sums that fail one by one passed the whole job's
    ],
)
def test_what_once_failed_does_not(seed: int) -> None:
    for long_sums in (False, True):
        _core.run_bad_session(seed, long_sums)


def test_jobs_are_of_many_kinds() -> None:
    words = [faults.run_seed(seed)["job"] for seed in range(300)]
    said = Counter(word for text in words for word in re.findall(r"[\w']+", text))
    for word in (
        *("levels", "ordered", "float16", "int64", "cut", "clock", "waits"),
        *("dedicated", "qsgd2", "memory", "again", "unnoticed", "differ"),
    ):
        assert said[word] > 0, word
    assert len(set(words)) == len(words)


def test_a_failure_names_its_seed_and_ends_the_search(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = faults.run_seed

    def broken(seed: int) -> dict[str, object]:
        if seed == 5:
            raise EngineError("seed 5: rank 1 has a wrong sum 0; 2 ranks")
        return run(seed)

    monkeypatch.setattr(faults, "run_seed", broken)
    outcome = faults.run(3, 100, 0, tmp_path / "out.json")
    assert (outcome["failed_seed"], outcome["counts"]["jobs"]) == (5, 3)
    assert json.loads((tmp_path / "out.json").read_text())["failure"].startswith("seed 5: ")


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "simulator", "--faults", *words],
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_the_command(tmp_path: Path) -> None:
    done = command("--seed", "7")
    assert done.returncode == 0 and done.stdout.startswith("1 jobs, ")
    assert " ranks" in done.stdout.splitlines()[1]
    done = command("--seed", "7", "--jobs", "20", "--json", str(tmp_path / "x.json"))
    assert done.returncode == 0
    assert json.loads((tmp_path / "x.json").read_text())["counts"]["jobs"] == 20
    shared = tmp_path / "y.json"
    done = command("--seed", "7", "--jobs", "120", "--processes", "2", "--json", str(shared))
    assert done.returncode == 0, done.stderr
    assert json.loads(shared.read_text())["counts"] == faults.run(7, 120, 0, None)["counts"]
    done = command("--jobs", "0")
    assert done.returncode == 2 and "at least 1" in done.stderr


def test_a_run_goes_on_where_its_file_ends(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    for jobs in (3, 3, 8):
        file.touch()
        went_on = faults.run(7, jobs, 0, file, resume=True)
    whole = faults.run(7, 8, 0, None)
    for what in ("first_seed", "counts", "last_job", "failure"):
        assert went_on[what] == whole[what]
    assert json.loads(file.read_text())["simulated_s"] == pytest.approx(whole["simulated_s"])
