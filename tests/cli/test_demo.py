"""`python -m omnihvd.demo`: real ranks, and what it does when something is missing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path


def demo(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "omnihvd.demo", *arguments],
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=200,
    )


def test_both_trainings_agree_and_omnihvd_moves_less() -> None:
    done = demo("--steps", "4")
    assert done.returncode == 0, done.stderr
    assert "The losses of all 4 steps agree." in done.stdout
    moved = re.search(r"moved by a rank, MB a step +(\S+) +(\S+)", done.stdout)
    assert moved and 0 < 10 * float(moved[2]) < float(moved[1]) == 25.6


def test_sums_that_fall_back_are_an_error() -> None:
    done = demo("--steps", "2", env={"OMNIHVD_MIN_BYTES": "1000000000"})
    assert done.returncode == 1
    assert "omnihvd made no sum on rank 0; fallbacks: {'small'" in done.stderr


def test_without_pytorch_it_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('none here')")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = demo(env={"PYTHONPATH": path})
    assert done.returncode == 1 and "PyTorch is missing: pip install torch" in done.stderr
