"""setup.py: which MPI it builds for, and what it packs. No compiler runs here."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CMAKE = shutil.which("cmake", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
FINDS_MPI = re.compile(
    r"  get_filename_component\((?:hints|python_bin) .*?  find_program\(.*?\)\n", re.S
)
# Says how CMake would be called; the lock is all that it writes.
CONFIGURES = """
import json, subprocess, types
from distutils.core import run_setup
calls = []
subprocess.run = lambda words, **_: calls.append(words) or types.SimpleNamespace(returncode=0)
build = run_setup("setup.py", stop_after="init").get_command_obj("build_ext")
build.inplace = True
build.ensure_finalized()
build.run()
print(json.dumps(calls[0]))
"""
PACKS = """
import sys
from distutils.core import run_setup
distribution = run_setup("setup.py", stop_after="init")
distribution.get_command_obj("egg_info").egg_base = sys.argv[1]
build = distribution.get_command_obj("build_py")
build.build_lib = sys.argv[1]
distribution.have_run["build_ext"] = sys.argv[2] == "after the engine"
build.ensure_finalized()
build.run()
"""


def run(program: str, *words: object, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", f"import setuptools\n{program}", *map(str, words)],
        cwd=ROOT,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(CMAKE is None, reason="needs CMake")
@pytest.mark.parametrize("mpi_home", [True, False])
def test_mpi_is_that_of_mpi_home_else_of_pythons_environment(
    tmp_path: Path, mpi_home: bool
) -> None:
    """/bin has `ls`, as it has the mpicxx of a distribution."""
    (block,) = FINDS_MPI.findall((ROOT / "omnihvd/csrc/CMakeLists.txt").read_text())
    folders = {name: tmp_path / name / "bin" for name in ("mpi", "python")}
    for folder in folders.values():
        folder.mkdir(parents=True)
        (folder / "ls").touch()
        (folder / "ls").chmod(0o700)
    script = tmp_path / "find.cmake"
    script.write_text(
        "cmake_minimum_required(VERSION 3.20)\n"
        f"set(Python_EXECUTABLE {folders['python']}/python)\n"
        + block.replace("NAMES mpicxx mpic++", "NAMES ls")
        + 'message("${OMNIHVD_MPICXX}")\n'
    )
    env = {name: value for name, value in os.environ.items() if name != "MPI_HOME"}
    if mpi_home:
        env["MPI_HOME"] = str(tmp_path / "mpi")
    done = subprocess.run(
        [str(CMAKE), "-P", script], env=env, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr.strip() == str(folders["mpi" if mpi_home else "python"] / "ls")


def test_a_build_in_place_looks_for_mpi_again() -> None:
    words = json.loads(run(CONFIGURES, CMAKE_ARGS="-DOMNIHVD_MPICXX=/my/mpicxx"))
    assert words.index("-UOMNIHVD_MPICXX") < words.index("-DOMNIHVD_MPICXX=/my/mpicxx")
    assert "-UMPI_*" in words


@pytest.mark.parametrize("when", ["before the engine", "after the engine"])
def test_a_second_build_does_not_pack_what_the_first_had(tmp_path: Path, when: str) -> None:
    old = [tmp_path / "omnihvd" / name for name in ("gone.py", "lib/libomnihvd_gone.so")]
    for file in old:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    run(PACKS, tmp_path, when)
    assert (tmp_path / "omnihvd" / "version.py").exists()
    # The engine's build has just put its files there: they stay.
    assert [file.exists() for file in old] == [when == "after the engine"] * 2
