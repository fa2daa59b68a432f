"""Codecs under real launchers: see on_ranks/."""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest
from launch import Job, launch

HERE = Path(__file__).parent


def run(
    what: str,
    *options: str,
    ranks: int,
    launcher: str = "horovodrun",
    check: bool = True,
    **env: str,
) -> Job:
    pytest.importorskip("horovod.torch", exc_type=ImportError)
    env = {"OMPI_MCA_mpi_yield_when_idle": "1", **env}
    file = HERE / "on_ranks" / "torch_codecs.py"
    job = launch(
        [file, what, *options], ranks, launcher=launcher, env=env, timeout=120, check=check
    )
    for output in job.ranks:
        for task in what.split():
            assert f"{task} passed" in output, job.output
    return job


def test_over_mpi() -> None:
    job = run("freed bare grouped fused optimizer two_optimizers misuse mixed", ranks=3)
    for output in job.ranks:
        assert "was fused with tensors under a codec" in output


@pytest.mark.parametrize(
    ("task", "said"),
    [
        (
            "damaged",
            "a tensor under a codec is damaged, or of another version: install",
        ),
        ("differing", "another rank has other numbers where this rank has a tensor under a codec"),
    ],
)
def test_what_is_no_codecs_fails_the_sum(task: str, said: str) -> None:
    assert said in run(task, ranks=2, check=False).output


@pytest.mark.parametrize(("launcher", "ranks"), [("horovodrun", 3), ("horovodrun --gloo", 2)])
def test_a_rank_that_has_joined_takes_part(launcher: str, ranks: int) -> None:
    run("joined", ranks=ranks, launcher=launcher)


@pytest.fixture(scope="module")
def counting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that counts calls of MPI, to be preloaded."""
    mpicc = shutil.which("mpicc", path=sysconfig.get_path("scripts"))
    if mpicc is None:
        pytest.skip("needs mpicc")
    library = tmp_path_factory.mktemp("counting") / "libcount.so"
    source = HERE / "on_ranks" / "count_exchanges.c"
    subprocess.run([mpicc, "-shared", "-fPIC", source, "-o", library], check=True, timeout=60)
    return library


@pytest.mark.parametrize(
    ("way", "sums"),
    [("plain", 10), ("original", 10), ("shared", 0)],
)
def test_int32_cost_no_exchange_in_a_job_without_codecs(
    way: str, sums: int, counting: Path
) -> None:
    """As by Horovod alone where the original library sums, and nothing where omnihvd does."""
    env = {} if way == "plain" else {"OMNIHVD_WAY": way}
    program = HERE / "on_ranks" / "plain_int32.py"
    job = launch([program, way], 3, options=["-x", f"LD_PRELOAD={counting}"], env=env)
    for output in job.ranks:
        for size in (4000, 400_000):
            assert f"{size} bytes: ({sums}, 0)" in output, output
        # Each int32 may then be a codec's: the ranks compare it, by lengths and by words.
        assert (f"after a codec: ({sums}, 20)" in output) == (way != "plain"), output


def test_tensorflow() -> None:
    pytest.importorskip("horovod.tensorflow", exc_type=ImportError)
    file = HERE / "on_ranks" / "tensorflow_codecs.py"
    job = launch([file], 2, launcher="horovodrun", timeout=120)
    assert all("all well" in output for output in job.ranks), job.output
    assert "AutoGraph" not in job.output
    assert "the shape (None,) of of_any_size:0 is not known" in job.output


@pytest.mark.parametrize(
    ("launcher", "what"),
    [
        ("horovodrun", "fused another"),
        ("horovodrun --gloo", "bare reproducible fused another"),
    ],
)
def test_hosts_of_several_ranks(launcher: str, what: str) -> None:
    """They sum exactly inside, and by the codec between."""
    env = {"OMNIHVD_DETERMINISTIC": "1"} if "reproducible" in what else {}
    job = run(what, "hosts", ranks=4, launcher=launcher, **env)
    for output in job.ranks:
        assert re.search("disagree about .* by qsgd", output)
