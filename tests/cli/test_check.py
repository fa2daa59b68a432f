"""`omnihvd check`: each gap under its own name. Frameworks are stand-ins here, since theirs takes
seconds to import; tests/horovod has the real ones."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy
import pytest
from launch import launch

from omnihvd.check import job as check_job

PACKAGE = Path(__file__).parents[2] / "omnihvd"
HERE = Path(__file__).parent / "on_ranks"
# A Horovod with a library of C that calls what is asked for.
BASICS = """
import ctypes
class HorovodBasics:
    def __init__(self, path):
        self.MPI_LIB_CTYPES = ctypes.CDLL(path)
    def init(self): pass
    def is_initialized(self): return False
    def mpi_built(self): return %r
    def gloo_built(self): return False  # nothing of it in this library
    def nccl_built(self): return False
"""
MPI_OPS = """
from pathlib import Path
from horovod.common.basics import HorovodBasics
_basics = HorovodBasics(str(Path(__file__).with_name("mpi_lib_v2.so")))
def _allreduce_async(*args): pass
def _grouped_allreduce_async(*args): pass
"""
TORCH = "class Tensor: ...\nclass autograd:\n    class Function: ..."
C10D = """
def is_gloo_available(): return True
def is_initialized(): return False
def init_process_group(): pass
def _new_process_group_helper(): pass
"""
CALLS_MPI = "#include <mpi.h>\nvoid *f(void) { return (void *)&MPI_Allreduce; }"
MPI_INSIDE = "int MPI_Allreduce(void) { return 0; }"


def horovod(folder: Path, *, source: str, mpi: bool = True) -> None:
    for part in ("torch", "horovod", "horovod/common", "horovod/torch", "horovod-0.28.1.dist-info"):
        (folder / part).mkdir(parents=True, exist_ok=True)
        (folder / part / "__init__.py").write_text("")
    (folder / "torch/__init__.py").write_text(TORCH)
    (folder / "horovod/common/basics.py").write_text(BASICS % mpi)
    (folder / "horovod/torch/mpi_ops.py").write_text(MPI_OPS)
    (folder / "horovod/torch/__init__.py").write_text("from horovod.torch import mpi_ops")
    metadata = "Metadata-Version: 2.1\nName: horovod\nVersion: 0.28.1\n"
    (folder / "horovod-0.28.1.dist-info/METADATA").write_text(metadata)
    compiler = shutil.which("mpicc", path=f"{sysconfig.get_path('scripts')}:{os.environ['PATH']}")
    command = [compiler or "gcc", "-shared", "-fPIC", "-x", "c", "-", "-o"]
    library = folder / "horovod/torch/mpi_lib_v2.so"
    subprocess.run([*command, library], input=source, text=True, check=True, timeout=60)


def check(
    *words: str, path: list[Path], **env: str
) -> tuple[subprocess.CompletedProcess[str], dict[str, dict[str, object]]]:
    """Its end, and its findings by subject."""
    done = subprocess.run(
        [sys.executable, "-S", "-m", "omnihvd", "check", *words],
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(map(str, path)), **env},
    )
    findings = json.loads(done.stdout)["findings"] if "--json" in words and done.stdout else []
    return done, {finding["subject"]: finding for finding in findings}


def without_mpi_shim(folder: Path) -> Path:
    ignored = shutil.ignore_patterns("csrc", "__pycache__", "libomnihvd_mpi.so")
    shutil.copytree(PACKAGE, folder / "omnihvd", ignore=ignored)
    return folder


def test_no_mpi_when_it_was_built(tmp_path: Path) -> None:
    horovod(tmp_path, source=MPI_INSIDE)
    done, found = check("--json", path=[tmp_path, without_mpi_shim(tmp_path / "installed")])
    assert done.returncode == 1
    for subject, good in (("MPI shim", None), ("MPI in horovod.torch", False)):
        assert found[subject]["good"] is good
        assert "there was no MPI" in str(found[subject]["found"]), found[subject]


def test_mpi_inside_horovods_library(tmp_path: Path) -> None:
    horovod(tmp_path, source=MPI_INSIDE)
    done, found = check("--json", path=[tmp_path, PACKAGE.parent])
    assert done.returncode == 1
    assert "linked statically" in str(found["MPI in horovod.torch"]["found"])


def test_horovod_without_mpi(tmp_path: Path) -> None:
    horovod(tmp_path, source="int f;", mpi=False)
    done, found = check("--json", path=[tmp_path, PACKAGE.parent])
    assert done.returncode == 1 and "MPI in horovod.torch" not in found


def test_without_horovod_nothing_is_missing_under_torch_distributed(tmp_path: Path) -> None:
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text(f"{TORCH}\nimport torch.distributed.distributed_c10d")
    (package / "distributed").mkdir()
    (package / "distributed/__init__.py").write_text("def is_available(): return False")
    (package / "distributed/distributed_c10d.py").write_text(C10D)
    done, found = check("--json", path=[tmp_path, PACKAGE.parent])
    assert done.returncode == 0 and found["Gloo in torch"]["good"] is True
    assert found["Horovod"]["good"] is None, found
    assert not [f for f in found.values() if f["good"] is False]
    shutil.rmtree(package)
    done, found = check("--json", path=[tmp_path, PACKAGE.parent])
    assert done.returncode == 1 and found["Horovod"]["good"] is False


def test_disabled(tmp_path: Path) -> None:
    horovod(tmp_path, source=MPI_INSIDE)
    done, found = check("--json", path=[tmp_path, PACKAGE.parent], OMNIHVD_ENABLE="Off")
    assert done.returncode == 1
    assert found["settings"]["good"] is False and "OMNIHVD_ENABLE" in str(found["settings"])


@pytest.mark.parametrize("name", ["OMNIHVD_MIN_BITES", "OMNIHVD_BLOCK_SIZE"])
def test_a_wrong_setting_is_a_finding(tmp_path: Path, name: str) -> None:
    done, found = check("--json", path=[PACKAGE.parent], **{name: "x"})
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert found["settings"]["good"] is False and name in str(found["settings"]["found"])
    plain, _ = check(path=[PACKAGE.parent], **{name: "x"})
    assert plain.stdout.splitlines()[-1].startswith("No sums go through omnihvd: ")
    assert name in plain.stdout.splitlines()[-1]
    table, _ = check("--settings", path=[PACKAGE.parent], **{name: "x"})
    assert table.returncode == 0 and "OMNIHVD_BLOCK_SIZE" in table.stdout


def test_without_a_transport_no_sum_goes_through_omnihvd(path: str) -> None:
    done, found = check("--json", path=[Path(path)], UCX_TLS="none-such")
    said = json.loads(done.stdout)
    assert done.returncode == 1 and said["usable"] == []
    transport = found["transport"]
    assert transport["good"] is False and transport["remedy"] == "unset UCX_TLS"
    assert found["MPI in horovod.torch"]["good"]
    plain, _ = check(path=[Path(path)], UCX_TLS="none-such")
    verdict = plain.stdout.splitlines()[-1]
    assert verdict == f"No sums go through omnihvd: {transport['found']}."


def test_it_says_what_it_waits_for(tmp_path: Path) -> None:
    horovod(tmp_path, source=MPI_INSIDE)
    done, _ = check(path=[tmp_path, PACKAGE.parent])
    assert done.stderr == "importing horovod.torch, torch ...\n"
    assert "[--] MPI in horovod.torch" in done.stdout and done.stdout.count("\n") > 5
    verdict = done.stdout.splitlines()[-1]
    assert verdict.startswith("No sums on CPUs go through omnihvd; MPI in horovod.torch: ")


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Ranks have a Horovod on MPI, and NumPy, and nothing else of this environment."""
    horovod(tmp_path, source=CALLS_MPI)
    packages = Path(numpy.__file__).parents[1]
    for folder in packages.glob("numpy*"):
        (tmp_path / folder.name).symlink_to(folder)
    return f"{tmp_path}:{PACKAGE.parent}"


def findings(output: str) -> list[dict[str, object]]:
    return json.loads(output[output.index("{") : output.rindex("}") + 1])["findings"]


def test_a_job_whose_ranks_are_alike(path: str) -> None:
    command = [sys.executable, "-S", "-m", "omnihvd", "check", "--job", "--json"]
    job = launch(command, 3, env={"PYTHONPATH": path})
    found = {str(finding["subject"]): finding for finding in findings(job.ranks[0])}
    assert all(finding["good"] for finding in found.values()), found
    assert str(found["ranks"]["found"]).startswith("3, on ")
    host = socket.gethostname()
    assert "MB/s" in str(found[f"within {host}"]["found"])
    assert {"versions", "settings", "secret", "MPI in horovod.torch"} < set(found)
    assert "right on all ranks" in str(found["sum of 16 MB"]["found"])
    assert job.ranks[1:] == ["", ""]


def test_a_job_whose_ranks_differ(path: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    env = {"PYTHONPATH": path, "OMNIHVD_AGGREGATORS": address}
    job = launch([sys.executable, "-S", HERE / "differs.py"], 3, env=env, check=False)
    assert job.returncode == 1
    bad = {f["subject"]: f["found"] for f in findings(job.ranks[0]) if f["good"] is False}
    host = socket.gethostname()
    slots = f"OMNIHVD_SLOTS: 8 on rank 0 ({host}), 4 on rank 2 ({host})"
    assert bad["settings"] == slots
    assert "another secret on rank 1" in str(bad["secret"])
    assert "sixteen" not in job.output
    assert "ranks 0, 1, 2" in str(bad[f"aggregator {address}"])
    assert "OMNIHVD_SECRET of rank 1" in str(bad["sum of 16 MB"])
    assert len(bad) == 4, bad


@pytest.mark.parametrize("launcher", ["mpirun", "horovodrun --gloo"])
def test_ranks_find_each_other(launcher: str) -> None:
    job = launch([HERE / "gathers.py"], 3, launcher=launcher)
    assert all("all 3 well" in output for output in job.ranks)


def test_ranks_of_torchrun_find_each_other() -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3"]
    done = subprocess.run(
        [*command, HERE / "gathers.py"], capture_output=True, text=True, timeout=90
    )
    assert done.stdout.count("all 3 well") == 3, done.stderr


def test_a_job_of_no_launcher_is_told_so() -> None:
    done, _ = check("--job", path=[PACKAGE.parent])
    assert done.returncode == 2 and "mpirun" in done.stderr and done.stderr.count("\n") == 1


def test_a_job_with_a_wrong_setting_ends_with_its_findings(path: str) -> None:
    command = [sys.executable, "-S", "-m", "omnihvd", "check", "--job", "--json"]
    env = {"PYTHONPATH": path, "OMNIHVD_BLOCK_SIZE": "x"}
    job = launch(command, 2, env=env, check=False)
    assert job.returncode == 1 and "Traceback" not in job.output
    bad = [f for f in findings(job.ranks[0]) if f["good"] is False]
    assert bad and {f["subject"] for f in bad} == {"settings"}


def test_a_misspelt_secret_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNIHVD_SECERT", "sixteen characters")
    monkeypatch.setenv("OMNIHVD_SLOTS", "4")
    found = check_job._set_here()
    assert found["OMNIHVD_SLOTS"] == "4" and "OMNIHVD_SECERT" not in found
