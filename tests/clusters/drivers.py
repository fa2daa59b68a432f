"""Runs the driver of a job on a cluster."""

from __future__ import annotations

import json
import os
import sys
import sysconfig
from pathlib import Path
from typing import Any

from launch import ENVIRONMENT, STREAM
from processes import run_beside

HERE = Path(__file__).parent / "on_ranks"


def run_driver(name: str, *arguments: str, timeout: float, **env: str) -> Any:
    """Its last line, which is JSON. `env` is added to its environment."""
    environment = {
        **os.environ,
        **ENVIRONMENT,
        **STREAM,
        "PATH": sysconfig.get_path("scripts") + os.pathsep + os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, sys.path)]),  # of workers, too
        **env,
    }
    (ended,) = run_beside(
        [[sys.executable, HERE / name, *arguments]], [environment], timeout=timeout
    )
    lines = [line for line in ended.output.splitlines() if line.startswith('{"')]
    assert len(lines) == 1, ended.output
    return json.loads(lines[0])


def check_training(results: Any, size: int) -> None:
    """So many ranks have done training.train, and its sums were taken."""
    assert [result["rank"] for result in results] == list(range(size))
    for result in results:
        assert result["size"] == size
        assert result["ways"]["stream"]["calls"] == result["calls"] == 3
        assert result["failures"] == 0
        # Horovod sums which parameters have sparse gradients: 8 bytes for each.
        assert result["passed_share"] < 1e-3
        assert result["nonzero_blocks"] == 3 and result["sent_of_ring"] < 0.01
