"""Starts ranks that know of each other by torch.distributed's variables, and torchrun."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from launch import ENVIRONMENT, STREAM
from processes import Ended, free_port, run_beside

HERE = Path(__file__).parent
SCRIPTS = HERE / "on_ranks"
PYTHONPATH = os.pathsep.join([str(HERE.parents[1]), *filter(None, sys.path)])


def run(
    script: str,
    ranks: int,
    *words: object,
    under: bool = False,
    env: Mapping[str, str] | None = None,
    own: Mapping[int, Mapping[str, str]] | None = None,
    timeout: float = 60,
    check: bool = True,
) -> list[Ended]:
    """on_ranks/<script> on this many ranks. under: by `python -m omnihvd`. own: by rank. Raises
    AssertionError with all output when a rank fails, unless check is false, and after timeout."""
    shared = {**_environment(env), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    environments = [
        {**shared, "RANK": str(rank), "WORLD_SIZE": str(ranks), **(own or {}).get(rank, {})}
        for rank in range(ranks)
    ]
    command = [sys.executable, *(["-m", "omnihvd"] if under else []), SCRIPTS / script, *words]
    return run_beside([command] * ranks, environments, timeout=timeout, check=check)


def torchrun(*words: object, env: Mapping[str, str] | None = None, timeout: float = 90) -> str:
    """The output of `torchrun --standalone ...` and its ranks."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", *words]
    (ended,) = run_beside([command], [_environment(env)], timeout=timeout)
    return ended.output


def _environment(env: Mapping[str, str] | None) -> dict[str, str]:
    return {**os.environ, **ENVIRONMENT, **STREAM, "PYTHONPATH": PYTHONPATH, **(env or {})}
