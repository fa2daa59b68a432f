"""The whole path: unmodified Horovod in real jobs, on MPI and on Gloo."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aggregators import SECRET, servers
from launch import STREAM, Job, launch

HERE = Path(__file__).parent / "on_ranks"
EVERYTHING = {"OMNIHVD_MIN_BYTES": "0", "OMNIHVD_WAY": "auto"}
GLOO = "horovodrun --gloo"
on_both = pytest.mark.parametrize("launcher", ["mpirun", GLOO])


@pytest.mark.parametrize(
    ("launcher", "ranks", "way"),
    [
        ("mpirun", 1, "auto"),
        ("mpirun", 3, "shared"),
        ("mpirun", 4, "auto"),
        (GLOO, 2, "auto"),
        (GLOO, 3, "stream"),
    ],
)
def test_sums(launcher: str, ranks: int, way: str) -> None:
    env = {**EVERYTHING, "OMNIHVD_WAY": way}
    job = launch([HERE / "sums.py"], ranks, launcher=launcher, env=env, timeout=110)
    assert all("all well" in output for output in job.ranks) and len(job.ranks) == ranks


@pytest.mark.parametrize(("launcher", "ranks"), [("mpirun", 4), (GLOO, 3)])
def test_small_sums(launcher: str, ranks: int) -> None:
    job = launch([HERE / "small_sums.py"], ranks, launcher=launcher, timeout=60)
    assert all("all well" in output for output in job.ranks) and len(job.ranks) == ranks


@pytest.mark.parametrize(("launcher", "ranks"), [("horovodrun", 3), (GLOO, 4)])
def test_fused_tensors_optimizers_and_process_sets(launcher: str, ranks: int) -> None:
    job = launch(
        [HERE / "promises.py"], ranks, launcher=launcher, env=EVERYTHING, timeout=110, fresh=True
    )
    assert all("all well" in output for output in job.ranks) and len(job.ranks) == ranks


@pytest.mark.parametrize(
    ("launcher", "ranks", "enable"), [("mpirun", 3, "0"), (GLOO, 2, "0"), (GLOO, 3, "1")]
)
def test_unions_by_horovods_own_operations(launcher: str, ranks: int, enable: str) -> None:
    env = {**EVERYTHING, "OMNIHVD_ENABLE": enable}
    job = launch([HERE / "unions.py"], ranks, launcher=launcher, env=env, timeout=60)
    assert all("all well" in output for output in job.ranks) and len(job.ranks) == ranks


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"_groups": [[]]}, "need groups=None, and op=hvd.Average or op=hvd.Sum"),
        ({"op": "another"}, "need groups=None, and op=hvd.Average or op=hvd.Sum"),
        ({"_compression": "fp16"}, "are exact: leave compression= out, or give OmniReduce"),
    ],
)
def test_unions_of_another_optimizer_are_refused(changes: dict[str, Any], said: str) -> None:
    hvd = pytest.importorskip("horovod.torch", exc_type=ImportError)
    from horovod.torch import mpi_ops

    from omnihvd.torch import sum_unions

    like = {"_groups": None, "op": mpi_ops.Sum, "_compression": hvd.Compression.none}
    optimizer = SimpleNamespace(**like | changes, _allreduce_grad_async=print)
    with pytest.raises(ValueError, match=said):
        sum_unions(optimizer)
    said = "SimpleNamespace is not hvd.DistributedOptimizer's: give that"
    with pytest.raises(ValueError, match=re.escape(said)):
        sum_unions(SimpleNamespace())


@pytest.mark.parametrize(("launcher", "ranks"), [("mpirun", 2), (GLOO, 3)])
def test_horovods_other_operations(launcher: str, ranks: int) -> None:
    """On Gloo while it tunes itself."""
    tunes = {"HOROVOD_AUTOTUNE": "1", "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": "1"}
    tunes |= {"HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": "2"}
    arguments = ("mpi", {}) if launcher == "mpirun" else ("gloo", tunes)
    command, env = [HERE / "surface.py", arguments[0]], arguments[1]
    job = launch(command, ranks, launcher=launcher, env=env, timeout=110)
    assert all("all well" in output for output in job.ranks) and len(job.ranks) == ranks


@pytest.mark.parametrize(
    ("launcher", "setting"),
    [
        ("mpirun", {"OMNIHVD_DETERMINISTIC": "1"}),
        (GLOO, {**STREAM, "OMNIHVD_STREAMS": "2", "OMNIHVD_TRANSPORT": "udp"}),
        ("mpirun", {**STREAM, "OMNIHVD_BLOCK_SIZE": "32"}),
        (GLOO, {"OMNIHVD_WAY": "shared"}),
    ],
    ids=lambda setting: " ".join(setting) if isinstance(setting, dict) else setting,
)
def test_settings_change_no_sum(launcher: str, setting: dict[str, str]) -> None:
    env = {**EVERYTHING, **setting}
    job = launch([HERE / "promises.py"], 3, launcher=launcher, env=env, timeout=110)
    assert all("all well" in output for output in job.ranks)


@on_both
def test_two_levels(launcher: str) -> None:
    env = {**EVERYTHING, **STREAM, "OMNIHVD_LOG": "info", "OMNIHVD_STREAMS": "2"}
    job = launch([HERE / "promises.py", "abba"], 4, launcher=launcher, env=env, timeout=110)
    assert all("all well" in output for output in job.ranks)
    assert "the 4 ranks of a communicator stream without" not in job.output
    assert "joined a group of 2 ranks" in job.output and "group of 4 ranks" not in job.output


@pytest.mark.parametrize(("setting", "sleeps"), [("1", True), ("0", False)])
def test_who_waits_in_mpi_leaves_the_core_to_others(setting: str, sleeps: bool) -> None:
    job = launch([HERE / "waits.py"], 2, env={**STREAM, "OMNIHVD_POLITE": setting}, timeout=60)
    found = re.search(r"used (\S+) of (\S+) processor seconds; slept (\S+)", job.output)
    assert found, job.output
    used, of, slept = map(float, found.groups())
    assert (slept > 0.5 * of and used < 0.5 * of) if sleeps else slept == 0


@pytest.mark.parametrize("way", ["stream", "shared"])  # the others fail, or wait, as MPI or Gloo
@pytest.mark.parametrize(("launcher", "options"), [("mpirun", ["--enable-recovery"]), (GLOO, [])])
def test_a_killed_rank_fails_the_others_with_horovods_error(
    launcher: str, options: list[str], way: str
) -> None:
    env = {"OMNIHVD_WAY": way}
    command = [HERE / "dies.py"]
    job = launch(command, 3, launcher=launcher, options=options, env=env, timeout=60, check=False)
    for rank in (0, 1):
        assert f"rank {rank} survived" in job.ranks[rank], job.output
        assert "rank 2 (" in job.ranks[rank], "the culprit is not named:\n" + job.output


def told(job: Job, ranks: set[int]) -> list[str]:
    """The error that each of these ranks reports. Nobody's tensor may have changed."""
    assert "somebody wrote" not in job.output, job.output
    for rank in ranks:
        assert f"rank {rank} was told" in job.ranks[rank], job.output
    reports = [re.search("omnihvd error .*?failed: (.*)", job.ranks[rank]) for rank in ranks]
    return [report[1] if report else "" for report in reports]


@pytest.mark.parametrize(
    ("missing", "why"), [(0, "not imported"), (1, "not imported"), (2, "disabled"), (2, "no shim")]
)
def test_a_rank_without_omnihvd_is_named_by_all_others(missing: int, why: str) -> None:
    env = {"OMNIHVD_JOIN_TIMEOUT": "3"}
    job = launch([HERE / "missing.py", str(missing), why], 3, env=env, check=False)
    for text in told(job, {0, 1, 2} - {missing}):
        assert text.startswith(f"rank {missing} did not come") and "import omnihvd on every" in text


@pytest.fixture(scope="module")
def library_that_dies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    mpicc = shutil.which("mpicc", path=sysconfig.get_path("scripts")) or shutil.which("mpicc")
    if mpicc is None:
        pytest.skip("needs mpicc")
    library = tmp_path_factory.mktemp("dies") / "libdie.so"
    source = HERE / "die_at_sum.c"
    subprocess.run([mpicc, "-shared", "-fPIC", source, "-o", library], check=True, timeout=60)
    return library


def test_a_rank_that_dies_before_its_first_sum_is_named(library_that_dies: Path) -> None:
    env, options = {"OMNIHVD_JOIN_TIMEOUT": "3"}, ["--enable-recovery"]
    command = [HERE / "missing.py", "1", "dies", library_that_dies]
    job = launch(command, 3, env=env, options=options, check=False)
    for text in told(job, {0, 2}):
        assert text.startswith("rank 1 did not come") and "or has ended" in text


def test_a_rank_that_dies_in_a_small_sum_is_named_within_seconds(library_that_dies: Path) -> None:
    command, options = [HERE / "dies_in_a_small_sum.py", library_that_dies], ["--enable-recovery"]
    job = launch(command, 3, options=options, timeout=60, check=False)
    for rank in (0, 1):
        survived = re.search(rf"rank {rank} survived after ([0-9.]+) s", job.ranks[rank])
        assert survived and float(survived[1]) < 10, job.output
        assert "rank 2 (" in job.ranks[rank], "the culprit is not named:\n" + job.output


@on_both
@pytest.mark.parametrize("order", ["omnihvd,horovod.torch", "horovod.torch,omnihvd"])
def test_imports_in_any_order_before_init(order: str, launcher: str) -> None:
    env = {**STREAM, "UCX_TLS": "tcp"}  # by whichever UCX comes first
    job = launch([HERE / "import_order.py", order], 2, launcher=launcher, env=env, fresh=True)
    assert all("calls 1" in output for output in job.ranks), job.output


BOUND = """
import horovod.tensorflow as hvd
import horovod.tensorflow.elastic
from omnihvd.intercept import horovod_library
ended = []
for _ in range(2):
    horovod_library.on_shutdown(lambda horovod: ended.append(horovod_library.framework_of(horovod)))
for module in (hvd, hvd.mpi_ops, hvd.elastic):
    module.shutdown()
assert ended == ["horovod.tensorflow"] * 6, ended
"""


def test_a_shutdown_is_seen_if_its_name_was_bound_before() -> None:
    """Else an elastic job keeps Horovod's connections, and a survivor waits for 30 s."""
    pytest.importorskip("horovod.tensorflow", exc_type=ImportError)
    done = subprocess.run([sys.executable, "-c", BOUND], capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("tls", ["tcp", "tcp,self"])  # neither has shared memory
def test_two_versions_of_ucx_are_refused(tls: str) -> None:
    """Open MPI's in the ranks, and omnihvd's own in the aggregator: their messages get lost."""
    with servers(1, UCX_TLS=tls) as started:
        env = {**STREAM, "UCX_TLS": tls, "OMNIHVD_SECRET": SECRET, "OMNIHVD_TIMEOUT": "30"}
        env["OMNIHVD_AGGREGATORS"] = started[0].address
        command = [HERE / "import_order.py", "horovod.torch,omnihvd"]
        job = launch(command, 2, env=env, check=False, fresh=True)
    if "calls 1" in job.output:
        pytest.skip("here Horovod brings no UCX of its own")
    assert job.returncode != 0
    assert "do not understand each other: import omnihvd before horovod" in job.output


@on_both
def test_import_after_init_is_an_error(launcher: str) -> None:
    command = [HERE / "import_order.py", "horovod.torch,init,omnihvd"]
    job = launch(command, 2, launcher=launcher, check=False, fresh=True)
    assert job.returncode != 0
    assert "omnihvd was imported after hvd.init()" in job.output
    assert "restart the kernel" in job.output


@pytest.mark.parametrize("launcher", ["mpirun", "horovodrun", GLOO])
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
    """One rank warns, if nobody asks for more or less."""
    job = launch([HERE / "import_order.py", "omnihvd"], 2, env={"OMNIHVD_LOG": level})
    found = [i for i, output in enumerate(job.ranks) if "sums taken: 1, of " in output]
    assert found == ranks, job.output


def test_a_rank_that_does_something_else_is_named_and_ends_the_job() -> None:
    """In Horovod's negotiation, before omnihvd has a part in it. On Gloo its check says nothing."""
    job = launch([HERE / "late.py"], 2, env={"OMNIHVD_TIMEOUT": "4"}, check=False)
    assert job.returncode != 0
    assert re.search(r"Missing ranks:\n1: \[.*second", job.ranks[0]), job.output


@on_both
def test_disabled_leaves_horovod_alone(launcher: str) -> None:
    env = {"OMNIHVD_ENABLE": "0"}
    job = launch([HERE / "import_order.py", "omnihvd"], 2, launcher=launcher, env=env, fresh=True)
    assert all("calls 0" in output for output in job.ranks)
    assert job.output.count("OmniReduce is not in use") == 1


@on_both
def test_a_bad_setting_on_one_rank_fails_all_with_its_name(launcher: str) -> None:
    command = [HERE / "import_order.py", "omnihvd,init,bad"]
    job = launch(command, 2, launcher=launcher, check=False)
    assert job.returncode != 0
    assert "rank 1: OMNIHVD_MIN_BYTES=many" in job.output


def test_a_misspelt_setting_is_an_error() -> None:
    env = {"OMNIHVD_MIN_BITES": "1"}
    job = launch([HERE / "import_order.py", "omnihvd"], 2, env=env, check=False)
    assert job.returncode != 0
    assert "OMNIHVD_MIN_BITES" in job.output
