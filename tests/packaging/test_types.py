"""Type checkers see the types of an installed omnihvd, the engine's, too (PEP 561)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_types_are_installed(tmp_path: Path) -> None:
    build = [sys.executable, "setup.py", "-q", "egg_info", f"--egg-base={tmp_path}"]
    build += ["build_py", f"--build-lib={tmp_path}/lib"]
    subprocess.run(build, cwd=ROOT, check=True, timeout=120)
    installed = tmp_path / "lib/omnihvd"
    assert (installed / "py.typed").is_file()
    stubs = {path.name for path in (ROOT / "omnihvd/_engine").glob("*.pyi")}
    assert {path.name for path in (installed / "_engine").iterdir()} == stubs != set()
