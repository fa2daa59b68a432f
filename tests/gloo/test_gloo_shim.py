"""The Gloo shim, between real processes, on a double of a Horovod library, and Horovod's own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from launch import ENVIRONMENT, STREAM, launch
from processes import Ended, run_beside

HERE = Path(__file__).parent
CXX = shutil.which("c++") or shutil.which("g++")
pytestmark = pytest.mark.skipif(CXX is None, reason="needs a C++ compiler")


def double(folder: Path, *options: str) -> Path:
    path = folder / "libhorovod_double.so"
    command = [
        str(CXX), "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC",
        "-Wl,-Bsymbolic-functions", "-Wl,-z,now", HERE / "doubles" / "horovod.cc",
    ]  # fmt: skip
    subprocess.run([*command, *options, "-o", path], check=True, timeout=60)
    return path


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return double(tmp_path_factory.mktemp("double"))


def run(
    program: str, library: Path, folder: Path, ranks: int, *arguments: object, **env: str
) -> list[Ended]:
    command = [sys.executable, HERE / "on_ranks" / program, library, folder]
    environment = {**os.environ, **ENVIRONMENT, **STREAM, **env}
    return run_beside(
        [[*command, rank, ranks, *arguments] for rank in range(ranks)],
        [environment] * ranks,
        timeout=100,
    )


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_what_is_taken(library: Path, tmp_path: Path, ranks: int) -> None:
    ended = run("taken.py", library, tmp_path, ranks, OMNIHVD_MIN_BYTES="1000")
    assert all("all well" in rank.output for rank in ended)


@pytest.mark.parametrize(
    ("option", "why", "reason"),
    [
        ("-DANOTHER_FUNCTION", "vtables are of another size", ""),
        ("-DOTHER_ARGUMENTS", "hold other functions", ""),
        ("-Wl,-Bsymbolic", "does not look its Gloo algorithms up", ""),
        ("-DANOTHER_MEMBER", "", "layout"),
    ],
)
def test_a_library_of_another_layout_keeps_its_sums(
    tmp_path: Path, option: str, why: str, reason: str
) -> None:
    ended = run("misfit.py", double(tmp_path, option), tmp_path, 2, why, reason)
    for rank in ended:
        assert "all well" in rank.output
        assert rank.output.count("not as in Horovod 0.28.1") == (reason == "layout")


@pytest.mark.parametrize(
    ("rank_1", "message"),
    [
        ("unhooked", "rank 1 says something else over Gloo"),
        (
            "absent",
            "rank 1 of 3 did not come to .* the ranks did not meet. .* Gloo says: Timed out",
        ),
    ],
)
def test_a_rank_that_is_not_hooked_or_does_not_come_is_reported(
    library: Path, tmp_path: Path, rank_1: str, message: str
) -> None:
    ended = run("alone.py", library, tmp_path, 3, rank_1)
    for rank in (0, 2):
        assert re.search(f"failed: .*{message}", ended[rank].output)


def test_first_sums_that_differ_are_named_with_both_sides(library: Path, tmp_path: Path) -> None:
    sides = r"rank 1 \(\S+\) sums 70000 float32, rank 0 \(\S+\) sums 80000 float32"
    for rank in run("differs.py", library, tmp_path, 2):
        assert re.search(
            f"RuntimeError: the ranks disagree about an allreduce: {sides}", rank.output
        )


def test_ranks_that_change_leave_nothing_behind(library: Path, tmp_path: Path) -> None:
    ended = run("changes.py", library, tmp_path, 3, 50, OMNIHVD_LOG="off")
    assert all("all well" in rank.output for rank in ended)


@pytest.mark.parametrize("way", ["stream", "shared"])
def test_a_forked_child_ends_without_ending_the_rank(
    library: Path, tmp_path: Path, way: str
) -> None:
    ended = run("forks.py", library, tmp_path, 2, OMNIHVD_WAY=way)
    assert all("all well" in rank.output for rank in ended)
    assert sum(rank.output.count("sums taken: 2,") for rank in ended) == 1  # rank 0's, once


def test_horovod_that_is_shut_down_has_no_connections() -> None:
    """Horovod itself keeps those of its process sets: a rank that waits for this one waits on."""
    job = launch([HERE / "on_ranks" / "shuts_down.py"], 2, launcher="horovodrun --gloo")
    for rank in job.ranks:
        before, after = map(int, re.findall(r"CONNECTIONS (\d+) (\d+)", rank)[0])
        assert before > 0 and after == 0
