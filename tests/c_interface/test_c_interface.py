"""omnihvd.h, from C programs over MPI."""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest
from launch import launch

import omnihvd

ROOT = Path(__file__).parents[2]
MPICC = shutil.which("mpicc", path=sysconfig.get_path("scripts")) or shutil.which("mpicc")
pytestmark = pytest.mark.skipif(MPICC is None, reason="needs mpicc")
EXAMPLE = ROOT / "examples" / "block_lists.c"


def compiled(source: Path, folder: Path) -> Path:
    """By the example's command, with warnings."""
    recipe = re.search(r"mpicc (.*) -o sum", EXAMPLE.read_text())
    assert recipe
    library = Path(omnihvd.__file__).parent / "lib"
    flags = recipe[1].replace("examples/block_lists.c", str(source)).replace('"$LIB"', str(library))
    command = [str(MPICC), "-std=c11", "-Wall", "-Wextra", "-Werror", *flags.split()]
    subprocess.run([*command, "-o", folder / "sum"], cwd=ROOT, check=True, timeout=60)
    return folder / "sum"


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_lists(tmp_path: Path, ranks: int) -> None:
    job = launch([compiled(Path(__file__).parent / "lists.c", tmp_path)], ranks)
    assert all("all well" in output for output in job.ranks), job.output


def test_the_example(tmp_path: Path) -> None:
    job = launch([compiled(EXAMPLE, tmp_path)], 3)
    expected = ["block 0: 1", "block 1: 2", "block 2: 3", "block 999999: 6"]
    assert re.findall(r"block .*", job.ranks[0]) == expected, job.output


def test_the_header_is_c_plus_plus_too(tmp_path: Path) -> None:
    source = tmp_path / "use.cc"
    source.write_text('#include "omnihvd.h"\nint main() { return omnihvd_error()[0]; }\n')
    command = ["c++", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-I"]
    subprocess.run([*command, ROOT / "omnihvd" / "csrc" / "api", source], check=True, timeout=60)
