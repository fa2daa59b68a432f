"""Ranks that share a GPU are told apart as hosts, whatever has started them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from processes import run_beside

from benchmarks.bench import one_gpu
from omnihvd import launchers

RANK_NAMES = [launcher.rank for launcher in launchers.ALL]

SHOW = """
import os, sys
print(os.environ["NCCL_HOSTID"], os.environ["OMNIHVD_HOST_ID"], *sys.argv[1:])
"""
RANKLESS = {k: v for k, v in os.environ.items() if k not in RANK_NAMES}


@pytest.mark.parametrize("name", RANK_NAMES)
def test_each_rank_has_a_host_of_its_own(tmp_path, name):
    script = tmp_path / "script.py"
    script.write_text(SHOW)
    command = [sys.executable, Path(one_gpu.__file__), script, "--an", "argument"]
    environments = [{**RANKLESS, name: str(rank)} for rank in range(2)]
    words = [done.output.split() for done in run_beside([command] * 2, environments, timeout=30)]
    assert all(nccls == ours for nccls, ours, *_ in words)
    assert words[0][0] != words[1][0]
    assert [rest for _, _, *rest in words] == [["--an", "argument"]] * 2


def test_the_ranks_of_a_job_meet_and_share_the_first_gpu():
    first, second, third = one_gpu.environments(3)
    assert [own["RANK"] for own in (first, second, third)] == ["0", "1", "2"]
    assert len({own["OMNIHVD_HOST_ID"] for own in (first, second, third)}) == 3
    for name, value in {"WORLD_SIZE": "3", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}.items():
        assert first[name] == second[name] == third[name] == value
    assert first["MASTER_PORT"] == second["MASTER_PORT"] == third["MASTER_PORT"] != "0"


def test_without_a_rank_it_says_what_it_needs(tmp_path):
    command = [sys.executable, Path(one_gpu.__file__), "script.py"]
    (done,) = run_beside([command], [RANKLESS], timeout=30, check=False)
    assert done.returncode == 1 and "the rank in one of OMPI_COMM_WORLD_RANK" in done.output
