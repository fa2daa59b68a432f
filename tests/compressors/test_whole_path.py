"""Training under horovodrun, omnihvd's transport beneath: see on_ranks/."""

import os
from pathlib import Path

import pytest
from launch import launch

HERE = Path(__file__).parent


@pytest.mark.parametrize(
    ("file", "ranks"), [("torch_training", 3), ("torch_methods", 3), ("tensorflow_training", 2)]
)
@pytest.mark.timeout(300)
def test_on_ranks(file, ranks):
    pytest.importorskip(f"horovod.{file.split('_')[0]}", exc_type=ImportError)
    run_tests(file, ranks)


def run_tests(file, ranks, **env):
    file = HERE / "on_ranks" / f"{file}.py"
    job = launch(
        [HERE.parent / "under_pytest.py", file],
        ranks,
        launcher="horovodrun",
        env={
            "OMNIHVD_MIN_BYTES": "0",
            "OMNIHVD_DETERMINISTIC": "1",  # trainings are compared bit for bit
            "OMPI_MCA_mpi_yield_when_idle": "1",
            **env,
        },
        timeout=280,
    )
    assert all(" passed" in output for output in job.ranks), job.output


def test_objects_of_grace_itself() -> None:
    """GRACE_CLONE: where github.com/sands-lab/grace has been cloned."""
    folder = os.environ.get("GRACE_CLONE")
    if not folder:
        pytest.skip("needs GRACE_CLONE, a clone of github.com/sands-lab/grace")
    run_tests("published_grace", 3, PYTHONPATH=f"{folder}:{os.environ.get('PYTHONPATH', '')}")


def test_on_one_rank() -> None:
    pytest.importorskip("horovod.torch", exc_type=ImportError)
    assert "all well" in launch([HERE / "on_ranks" / "alone.py"], 1, timeout=60).output
