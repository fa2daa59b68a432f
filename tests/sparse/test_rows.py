"""Sparse gradients as a sum of rows, in real jobs of both frameworks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from launch import launch

HERE = Path(__file__).parent / "on_ranks"


@pytest.mark.timeout(200)
@pytest.mark.parametrize("script", ["torch_rows.py", "tensorflow_rows.py"])
@pytest.mark.parametrize("ranks", [2, 3])
def test_training_equals_one_process(script: str, ranks: int) -> None:
    job = launch([HERE / script], ranks, env={"OMNIHVD_MIN_BYTES": "1024"}, timeout=180)
    assert all("all well" in output for output in job.ranks) and len(job.ranks) == ranks


def test_importing_omnihvd_imports_no_framework() -> None:
    code = "import omnihvd, sys; print({'torch', 'tensorflow', 'horovod'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
