"""The whole path: unmodified Horovod in real jobs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from launch import launch

HERE = Path(__file__).parent / "on_ranks"
EVERYTHING = {"OMNIHVD_MIN_BYTES": "0"}


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_sums(ranks: int) -> None:
    job = launch([HERE / "sums.py"], ranks, env=EVERYTHING, timeout=110)
    assert all("all well" in output for output in job.ranks) and len(job.ranks) == ranks


@pytest.mark.parametrize("launcher", ["mpirun", "horovodrun"])
@pytest.mark.parametrize("ranks", [3, 4])
def test_fused_tensors_optimizers_and_process_sets(ranks: int, launcher: str) -> None:
    job = launch([HERE / "fused.py"], ranks, launcher=launcher, env=EVERYTHING, timeout=110)
    assert all("all well" in output for output in job.ranks) and len(job.ranks) == ranks


@pytest.mark.parametrize(
    "setting",
    [
        {"OMNIHVD_DETERMINISTIC": "1"},
        {"OMNIHVD_STREAMS": "2", "OMNIHVD_MESSAGE_BYTES": "4096"},
        {"OMNIHVD_BLOCK_SIZE": "32"},
    ],
    ids=lambda setting: " ".join(setting),
)
def test_settings_change_no_sum(setting: dict[str, str]) -> None:
    job = launch([HERE / "fused.py"], 3, env={**EVERYTHING, **setting}, timeout=110)
    assert all("all well" in output for output in job.ranks)


def test_a_killed_rank_fails_the_others_with_horovods_error() -> None:
    job = launch([HERE / "dies.py"], 3, options=["--enable-recovery"], timeout=60, check=False)
    for rank in (0, 1):
        assert f"rank {rank} survived" in job.ranks[rank], job.output
        assert "rank 2 (" in job.ranks[rank], "the culprit is not named:\n" + job.output


@pytest.mark.parametrize("order", ["omnihvd,horovod.torch", "horovod.torch,omnihvd"])
def test_imports_in_any_order_before_init(order: str) -> None:
    job = launch([HERE / "import_order.py", order], 2)
    assert all("calls 1" in output for output in job.ranks), job.output


def test_import_after_init_is_an_error() -> None:
    job = launch([HERE / "import_order.py", "horovod.torch,init,omnihvd"], 2, check=False)
    assert job.returncode != 0
    assert "omnihvd was imported after hvd.init()" in job.output


@pytest.mark.parametrize("launcher", ["mpirun", "horovodrun"])
def test_an_unchanged_script_as_an_argument(launcher: str) -> None:
    command = ["python", "-m", "omnihvd", HERE / "prints_stats.py", "--lr", "1"]
    job = launch(command, 2, launcher=launcher)
    for output in job.ranks:
        answer = json.loads(output[output.index("{") : output.rindex("}") + 1])
        assert answer["arguments"] == ["--lr", "1"] and answer["main"] == "__main__"
        assert answer["calls"] == 1


def test_an_unchanged_module_as_an_argument() -> None:
    command = ["python", "-m", "omnihvd", "-m", "prints_stats", "x"]
    job = launch(command, 2, env={"PYTHONPATH": f"{HERE}:{Path(__file__).parents[2]}"})
    assert all('"calls": 1' in output for output in job.ranks), job.output


@pytest.mark.parametrize(("level", "ranks"), [("warning", [0]), ("info", [0, 1]), ("error", [])])
def test_a_summary_at_the_end(level: str, ranks: list[int]) -> None:
    """Of one rank, if nobody asks for more or less."""
    job = launch([HERE / "import_order.py", "omnihvd"], 2, env={"OMNIHVD_LOG": level})
    found = [i for i, output in enumerate(job.ranks) if "sums taken: 1, of " in output]
    assert found == ranks, job.output


def test_disabled_leaves_horovod_alone() -> None:
    env = {"OMNIHVD_ENABLE": "0"}
    job = launch([HERE / "import_order.py", "omnihvd"], 2, env=env)
    assert all("calls 0" in output for output in job.ranks)
    assert job.output.count("OmniReduce is not in use") == 1


def test_a_horovod_on_gloo_says_so_and_works() -> None:
    env = {"HOROVOD_CPU_OPERATIONS": "gloo"}
    job = launch([HERE / "import_order.py", "omnihvd"], 2, launcher="horovodrun --gloo", env=env)
    assert all("calls 0" in output for output in job.ranks), job.output
    assert "OmniReduce is not in use" in job.output


def test_a_misspelt_setting_is_an_error() -> None:
    env = {"OMNIHVD_MIN_BITES": "1"}
    job = launch([HERE / "import_order.py", "omnihvd"], 2, env=env, check=False)
    assert job.returncode != 0
    assert "OMNIHVD_MIN_BITES" in job.output
