"""The Makefile, in a folder that has nothing else: stubs say how they are called."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
STAMPS = (".created", ".packages", ".quick-torch", ".quick-tools")


def stub(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o700)


def python(file: Path, version: str) -> None:
    """It says its version, or which CMAKE_ARGS a build has."""
    stub(file, f'[ "$1" = -c ] && echo {version} || echo "built: $CMAKE_ARGS."')


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    folder = tmp_path / "clone"
    folder.mkdir()
    shutil.copy(ROOT / "Makefile", folder)
    python(folder / ".venv/bin/python", "3.11")
    stub(folder / ".ci/wheel", 'echo "built: $CMAKE_ARGS. $PYTHONS"')
    for name in ("torch", "unresolved", "requirements", "constraints", "quick"):
        (folder / ".ci" / f"{name}.txt").touch()
    for stamp in STAMPS:  # newer than all else
        (folder / ".venv" / stamp).touch()
    return folder


def make(folder: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    # By MAKELEVEL a make that runs these tests would have this one print its folder.
    left_out = ("CMAKE_ARGS", "MAKEFLAGS", "MAKELEVEL", "MFLAGS", "PYTHON")
    given = {k: v for k, v in os.environ.items() if k not in left_out}
    return subprocess.run(
        ["make", *words],
        cwd=folder,
        env={**given, "LC_ALL": "C", **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_path_with_a_space_is_refused(clone: Path) -> None:
    moved = clone.rename(clone.with_name("a clone"))
    done = make(moved, "help")
    assert done.returncode == 2 and done.stdout == ""
    assert f'make takes no path with a space: move this clone out of "{moved}"' in done.stderr


@pytest.mark.parametrize("target", ["quick-engine", "wheel"])
@pytest.mark.parametrize("given", ["", "-DOMNIHVD_WERROR=ON", "-DA=1 -DOMNIHVD_WERROR=ON"])
def test_those_who_only_install_get_no_errors_for_warnings(
    clone: Path, target: str, given: str
) -> None:
    done = make(clone, target, **({"CMAKE_ARGS": given} if given else {}))
    assert done.returncode == 0, done.stderr
    own = "-DA=1" if "A=1" in given else ""
    assert f"built: {own}." in done.stdout


@pytest.mark.parametrize("target", [".venv/.packages", "quick-engine"])
def test_another_python_than_the_environments_is_refused(clone: Path, target: str) -> None:
    stamp, other = f"{clone}/{target}" if "/" in target else target, clone / "python3.12"
    python(other, "3.12")
    done = make(clone, stamp, f"PYTHON={other}")
    said = f".venv has Python 3.11, and PYTHON={other} is 3.12: rm -r .venv, then make again"
    assert done.returncode == 2 and said in done.stdout
    python(other, "3.11")
    assert make(clone, stamp, f"PYTHON={other}").returncode == 0
    assert make(clone, stamp).returncode == 0


def test_a_wheel_is_for_any_python(clone: Path) -> None:
    assert make(clone, "wheel", "PYTHON=python3.12").stdout == "built: . python3.12\n"


def test_wheels_leave_no_files_of_root(clone: Path) -> None:
    done = make(clone, "-n", "wheels")
    assert done.returncode == 0 and '--user "$(id -u):$(id -g)"' in done.stdout
