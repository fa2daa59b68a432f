"""ncclAllReduce under PyTorch on a real GPU, between processes that share it."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest
from torch_job import PLAIN, run, why_not

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(bool(why_not()), reason=why_not() or "GPU")]

ALWAYS = {"OMNIHVD_GPU": "union", "OMNIHVD_GPU_MIN_BYTES": "0"}
WAYS = {"union": ALWAYS, "plain": PLAIN}


@pytest.fixture(scope="module", autouse=True)
def kernels() -> None:
    """Compiled once, before any test is timed; a compiler that is missing shows here."""
    command = [sys.executable, "-m", "omnihvd", "kernels"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def run_well(*args: object, **options: object) -> None:
    for rank in run(*args, **options):
        assert "all well" in rank.output, rank.output


@pytest.mark.timeout(200)
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("way", WAYS)
def test_sums(way, ranks):
    run_well("sums.py", ranks, env=WAYS[way], timeout=180)


@pytest.mark.timeout(200)
def test_sums_with_other_blocks():
    run_well("sums.py", 2, env={**ALWAYS, "OMNIHVD_BLOCK_SIZE": "32"}, timeout=180)


@pytest.mark.timeout(140)
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(
    "scenario",
    [
        "back_to_back", "in_stream_order", "caller_never_waits", "growing", "new_groups",
        "driver_locks", "a_thousand",
    ],
)  # fmt: skip
def test_streams(scenario, ranks):
    run_well("streams.py", ranks, scenario, env=ALWAYS)


@pytest.mark.timeout(140)
@pytest.mark.parametrize(
    "scenario", ["back_to_back", "in_stream_order", "caller_never_waits", "a_thousand"]
)
def test_streams_of_plain_nccl(scenario):
    run_well("streams.py", 2, scenario, env=PLAIN)


@pytest.mark.timeout(140)
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("way", WAYS)
def test_special_values_and_what_is_left_to_nccl(way, ranks):
    run_well("left.py", ranks, env=WAYS[way])


@pytest.mark.timeout(140)
@pytest.mark.parametrize("way", WAYS)
def test_a_sum_that_is_aborted(way):
    run_well("aborts.py", 2, env=WAYS[way])


@pytest.mark.timeout(140)
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_killed_rank(ranks):
    *others, killed = run("dies.py", ranks, env=ALWAYS, check=False)
    assert killed.returncode == -9, killed.output
    for rank in others:
        assert "begun" in rank.output and "as if nothing" not in rank.output, rank.output
        assert rank.returncode != 0


@pytest.mark.timeout(560)
def test_memcheck():
    sanitizer = shutil.which("compute-sanitizer")
    if not sanitizer:
        pytest.skip("no compute-sanitizer on PATH (it comes with the CUDA toolkit)")
    tool = [sanitizer, "--tool", "memcheck", "--error-exitcode", "9", "--report-api-errors", "no"]
    tool += ["--target-processes", "application-only"]
    run_well("sums.py", 2, "few", before=tool, env=ALWAYS, timeout=540)
