"""`omnihvd check`: each gap under its own name. Frameworks are stand-ins here, since theirs takes
seconds to import; tests/horovod has the real ones."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "omnihvd"
# A Horovod whose library, of C, calls what is asked for.
BASICS = """
import ctypes
class HorovodBasics:
    def __init__(self, path):
        self.MPI_LIB_CTYPES = ctypes.CDLL(path)
    def init(self): pass
    def is_initialized(self): return False
    def mpi_built(self): return %r
    def gloo_built(self): return True
    def nccl_built(self): return False
"""
MPI_OPS = """
from pathlib import Path
from horovod.common.basics import HorovodBasics
_basics = HorovodBasics(str(Path(__file__).with_name("mpi_lib_v2.so")))
"""
MPI_INSIDE = "int MPI_Allreduce(void) { return 0; }"


def horovod(folder: Path, *, source: str, mpi: bool = True) -> None:
    for part in ("torch", "horovod/common", "horovod/torch", "horovod-0.28.1.dist-info"):
        (folder / part).mkdir(parents=True, exist_ok=True)
        (folder / part / "__init__.py").write_text("")
    (folder / "horovod/common/basics.py").write_text(BASICS % mpi)
    (folder / "horovod/torch/mpi_ops.py").write_text(MPI_OPS)
    (folder / "horovod/torch/__init__.py").write_text("from horovod.torch import mpi_ops")
    metadata = "Metadata-Version: 2.1\nName: horovod\nVersion: 0.28.1\n"
    (folder / "horovod-0.28.1.dist-info/METADATA").write_text(metadata)
    command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o"]
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
    for subject in ("MPI shim", "MPI in horovod.torch"):
        assert found[subject]["good"] is False
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
    table, _ = check("--settings", path=[PACKAGE.parent], **{name: "x"})
    assert table.returncode == 0 and "OMNIHVD_BLOCK_SIZE" in table.stdout


def test_it_says_what_it_waits_for(tmp_path: Path) -> None:
    horovod(tmp_path, source=MPI_INSIDE)
    done, _ = check(path=[tmp_path, PACKAGE.parent])
    assert done.stderr == "importing horovod.torch, torch ...\n"
    assert "[--] MPI in horovod.torch" in done.stdout and done.stdout.count("\n") > 5
