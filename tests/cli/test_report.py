"""Rank 0 says of a job by itself that sums are taken over, or why none is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from launch import launch
from processes import free_port

import omnihvd

HERE = Path(__file__).parent / "on_ranks"
SUMS = HERE.parents[1] / "horovod/on_ranks/prints_stats.py"
UNDER = ["python", "-m", "omnihvd"]


def said(output: str) -> list[str]:
    return [line for line in output.splitlines() if "[omnihvd " in line]


@pytest.mark.parametrize(
    ("launcher", "carrier"), [("mpirun", "MPI"), ("horovodrun --gloo", "Gloo")]
)
def test_one_line_when_sums_are_taken_over_and_one_at_the_end(launcher: str, carrier: str) -> None:
    line, last = said(launch([*UNDER, SUMS], 2, launcher=launcher).output)
    for part in (omnihvd.__version__, f"horovod.torch over {carrier}", "2 ranks", "OMNIHVD_LOG="):
        assert part in line
    assert "rank 0" in line and "rank 0" in last and "sums taken: 1, of" in last


def test_silence_where_only_errors_are_asked_for() -> None:
    assert said(launch([*UNDER, SUMS], 2, env={"OMNIHVD_LOG": "error"}).output) == []


def test_sums_that_are_all_too_small_are_spoken_of_meanwhile_and_at_the_end() -> None:
    lines = said(
        launch([*UNDER, HERE / "small_sums.py"], 2, env={"OMNIHVD_MIN_BYTES": "1000"}).output
    )
    found = [line for line in lines if "no sum was taken over" in line]
    assert ["in this job" in line for line in found] == [False, True]
    for line in found:
        assert "rank 0" in line and "small (under OMNIHVD_MIN_BYTES)" in line
    assert "20 small" in found[1]


# Within a whole run of the suite "fork" lacked one of its lines twice; alone it never did. Until
# somebody knows why, it is apart.
@pytest.mark.parametrize(
    "how", [pytest.param("fork", marks=pytest.mark.slow), "spawn", "forkserver"]
)
def test_ranks_that_the_script_starts_itself_have_omnihvd(how: str) -> None:
    command = [sys.executable, "-m", "omnihvd", HERE / "starts_ranks.py", how, free_port()]
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert len(said(done.stderr)) == 2, done.stderr
    line, last = said(done.stderr)
    assert "rank 0" in line and "takes over PyTorch's sums over Gloo, on 2 ranks" in line
    assert "rank 0" in last and "sums taken: 1, of" in last


@pytest.mark.parametrize(
    ("backend", "level", "lines"),
    [
        (
            "gloo",
            "warning",
            ["takes over PyTorch's sums over Gloo, on 2 ranks", "sums taken: 1, of"],
        ),
        ("gloo", "error", []),  # also where no engine is made, as over shared memory
        (
            *("fake", "warning"),
            ["no sum was taken over in this job: PyTorch's process group sums with fake"],
        ),
    ],
)
def test_what_is_said_of_torchs_process_groups(backend: str, level: str, lines: list[str]) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += ["-m", "omnihvd", str(HERE / "torch_group.py"), backend]
    env = {**os.environ, "OMNIHVD_LOG": level, "OMNIHVD_WAY": "shared"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, env=env)
    assert done.returncode == 0, done.stderr
    assert len(said(done.stderr)) == len(lines)
    for line, expected in zip(said(done.stderr), lines):
        assert "rank 0" in line and expected in line


def test_why_a_sum_failed_stands_last() -> None:
    job = launch([HERE / "fails.py"], 2, check=False)
    # Horovod's own threads may write a line anywhere in between, also in two pieces.
    lines = job.ranks[0].splitlines()
    errors = [i for i, line in enumerate(lines) if "HorovodInternalError" in line]
    assert errors, job.output
    (last,) = (line for line in lines[errors[-1] + 1 :] if "omnihvd: " in line)
    assert "MPI_Allreduce failed: rank 1" in last and "OMNIHVD_NO_SUCH" in last
