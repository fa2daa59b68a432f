"""Keras 2 and 3, and both frameworks in one process, in real jobs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from launch import STREAM, launch

HERE = Path(__file__).parent / "on_ranks"
KERAS_2 = {**STREAM, "TF_USE_LEGACY_KERAS": "1", "OMNIHVD_MIN_BYTES": "1024"}
KERAS_3 = {**KERAS_2, "TF_USE_LEGACY_KERAS": "0"}
KERAS_3_NEEDS = "with Keras 3, use omnihvd.keras.DistributedOptimizer"
KERAS_2_CASES = ["overflow", "used", "saved", "saved_h5", "callbacks", "tape", "other_keras"]
KERAS_3_CASES = ["overflow", "inner", "used", "saved", "callbacks", "xla", "tape", "other_keras"]


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("keras", "ranks", "launcher"),
    [
        (2, 3, "horovodrun"),
        (3, 3, "mpirun"),  # two ranks gather rows, and no sum is left to tell of
    ],
)
def test_fit_and_logs(keras: int, ranks: int, launcher: str, tmp_path: Path) -> None:
    env = {2: KERAS_2, 3: {**KERAS_3, "OMNIHVD_WAY": "union"}}[keras]
    command = [HERE / "keras_callback.py", tmp_path]
    job = launch(command, ranks, launcher=launcher, env=env, timeout=110)
    assert all(f"all well with Keras {keras}" in out for out in job.ranks), job.output
    assert len(job.ranks) == ranks
    for figure in (
        r"sent_of_ring: \d+\.\d\d% ",
        r"density: \d+\.\d\d% ",
        r"ring_bytes: \d+\.\d{3} MB ",
    ):
        assert re.search(figure, job.ranks[0]), "not so in the progress bar"
    assert "OmniReduce is not in use" not in job.output
    assert "OmniReduce has nothing to do" not in job.output


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("env", "case", "message"),
    [
        (KERAS_2, "plain", "is the optimizer hvd.DistributedOptimizer?"),
        ({**KERAS_3, "OMNIHVD_MIN_BYTES": "0"}, "plain", KERAS_3_NEEDS),
        (
            {**KERAS_2, "OMNIHVD_ENABLE": "0"},
            "plain",
            "OmniReduce is not in use on rank 0: OMNIHVD_ENABLE=0",
        ),
        (
            KERAS_2,
            "own_step",
            "A train_step() that calls apply_gradients() needs hvd.DistributedGradientTape",
        ),
        (KERAS_3, "rows", "ranks share few rows, so Horovod gathers them, merged"),
        (KERAS_3, "one_rank", "OmniReduce has nothing to do: the job has one rank"),
    ],
    ids=["keras 2", "keras 3", "disabled", "own step", "rows", "one rank"],
)
def test_the_callback_says_when_nothing_is_reduced(
    env: dict[str, str], case: str, message: str, tmp_path: Path
) -> None:
    ranks = 1 if case == "one_rank" else 2
    job = launch([HERE / "keras_callback.py", tmp_path, case], ranks, env=env, timeout=110)
    assert job.output.count(message) == 1, job.output


@pytest.mark.timeout(90)
def test_both_frameworks_in_one_process() -> None:
    # Horovod's two libraries may free what the other's MPI_Finalize has freed: that is not ours.
    job = launch(
        [HERE / "both_frameworks.py"],
        2,
        timeout=80,
        env={**STREAM, "OMNIHVD_MIN_BYTES": "1024"},
        check=False,
    )
    assert all("all well" in output for output in job.ranks) and len(job.ranks) == 2


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("env", "cases"),
    [
        (KERAS_3, KERAS_3_CASES),
        pytest.param(KERAS_3, ["overflow_options"], marks=pytest.mark.slow),
        pytest.param(KERAS_2, KERAS_2_CASES, marks=pytest.mark.slow),
    ],
    ids=["keras 3", "keras 3 options", "keras 2"],
)
def test_distributed_optimizer(env: dict[str, str], cases: list[str], tmp_path: Path) -> None:
    job = launch([HERE / "keras_optimizer.py", tmp_path, *cases], 2, env=env, timeout=190)
    for output in job.ranks:
        assert all(f"{case}: as it should be" in output for case in cases), job.output
    assert len(job.ranks) == 2
