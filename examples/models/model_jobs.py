"""Jobs of worker.py: on hosts with shaped links (root), or on this machine alone."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Callable

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import demo  # noqa: E402

from benchmarks.bench.lab import Lab  # noqa: E402
from benchmarks.bench.lab_processes import search_path  # noqa: E402

STEP = re.compile(r"step (\d+) (\d+) (\S+) (\d+) (\S+)$")
OFF = {"OMNIHVD_ENABLE": "0"}
Tell = Callable[[str, int, int], None]  # of a job's step: what, how many are done, of how many


class JobError(Exception):
    """A job failed; the message has the end of its output."""


def run(
    given: Mapping[str, Any],
    ranks: int,
    tell: Tell,
    *,
    lab: Lab | None = None,
    per_host: int = 1,
    mca: Mapping[str, str] | None = None,
    env: Mapping[str, str] | None = None,
    under: Sequence[str] = (),
    timeout: float = 600,
) -> list[dict[str, Any]]:
    """Runs worker.py with `given` and returns its results. lab: has a host for each `per_host`
    ranks. under: arguments of Python, before the script."""
    with tempfile.TemporaryDirectory(prefix="omnihvd-models-") as folder:
        file = Path(folder, "found.json")
        words = json.dumps({**given, "file": str(file)})
        set_ = ["env", *(f"{name}={value}" for name, value in (env or {}).items())]
        program = [*set_, sys.executable, *under, str(HERE / "worker.py"), words]
        if lab:
            command = lab.mpirun_command(program, ranks_per_host=per_host, mca=mca)
        else:
            parameters = [word for pair in (mca or {}).items() for word in ("-mca", *pair)]
            command = ["mpirun", "--oversubscribe", *parameters, "-np", str(ranks), *program]
            command = ["env", f"PATH={search_path()}", *command]
        said: deque[str] = deque(maxlen=40)
        with demo.launched(command, Namespace(ranks=ranks, timeout=timeout)) as process:
            _listen(process, said, tell)
        if process.returncode or not file.exists():
            raise JobError(f"exit {process.returncode}: {shlex.join(command)}\n{''.join(said)}")
        found: list[dict[str, Any]] = json.loads(file.read_text())
        return found


def _listen(process: subprocess.Popen[str], said: deque[str], tell: Tell) -> None:
    assert process.stdout
    for line in process.stdout:
        said.append(line)
        if match := STEP.search(line.strip()):
            step, steps, method, seed, loss = match.groups()
            tell(f"{method}, seed {seed}: loss {loss}", int(step), int(steps))
