"""Runs a program on several ranks, in bounded time, and shows where they were when it runs out."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from environment import ENVIRONMENT, ONE_HOST, end_with_parent
from warm import warm

HERE = Path(__file__).parent
HOROVODRUN = [sys.executable, str(HERE / "quick_horovodrun.py")]
LAUNCHERS = {
    "mpirun": ["mpirun", "--oversubscribe"],
    "horovodrun": HOROVODRUN,
    "horovodrun --gloo": [*HOROVODRUN, "--gloo"],
}
# For tests of streaming, and of figures: which way is the fastest is another one in each run.
STREAM = {"OMNIHVD_WAY": "stream"}


def torchrun(ranks: int, *words: object) -> list[str]:
    """The command of `torchrun --standalone` for a script and its words, all by a warm Python."""
    options = ["--standalone", f"--nproc-per-node={ranks}", "--no-python"]
    python = [sys.executable, HERE / "quick_torchrun.py"]
    return warm([*python, *options, *warm([sys.executable, *words])])


@dataclass
class Job:
    """A finished job. `ranks` holds what each rank wrote, standard output before error."""

    returncode: int
    seconds: float
    output: str  # of the launcher, hence of all ranks, mixed
    ranks: list[str]


def launch(
    command: Sequence[str | Path],
    ranks: int,
    *,
    launcher: str = "mpirun",
    options: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    timeout: float = 60,
    check: bool = True,
    fresh: bool = False,
) -> Job:
    """Runs command on that many ranks.

    A first word that ends in .py is run by this Python, and by a warm one (warm/) unless fresh is
    true; launcher is a key of LAUNCHERS; env is added to this process's. Raises AssertionError with
    the output when the exit status is not 0 (unless check is false), and after timeout seconds,
    with the stacks of all Python ranks.
    """
    words = [str(word) for word in command]
    if words[0].endswith(".py"):
        python = [sys.executable, *words]
        words = python if fresh else warm(python)
    # This process may have them from a Horovod of its own, in an earlier test.
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("HOROVOD_STALL_")}
    environment = {**inherited, **ENVIRONMENT, **ONE_HOST, **(env or {})}
    environment["PATH"] = sysconfig.get_path("scripts") + os.pathsep + environment["PATH"]
    with tempfile.TemporaryDirectory() as folder:
        start = time.monotonic()
        process = subprocess.Popen(
            [
                *LAUNCHERS[launcher],
                "-np",
                str(ranks),
                "--output-filename",
                folder,
                *options,
                *words,
            ],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
            preexec_fn=end_with_parent,  # the launcher passes it on to its ranks
        )
        try:
            output, _ = process.communicate(timeout=timeout)
            late = False
        except subprocess.TimeoutExpired:
            late = True
            output = _abort(process)
        finally:
            _kill(process)
        seconds = time.monotonic() - start
        job = Job(process.returncode, seconds, output, _outputs(Path(folder)))
    assert not late, f"not done after {timeout:.0f} s: {' '.join(words)}\n{output}"
    if check:
        assert job.returncode == 0, f"exit status {job.returncode}: {' '.join(words)}\n{output}"
    return job


def _abort(process: subprocess.Popen[str]) -> str:
    """Makes the ranks write their stacks and end; returns all output."""
    for child in psutil.Process(process.pid).children(recursive=True):
        if not child.children():
            child.send_signal(signal.SIGABRT)
    try:
        return process.communicate(timeout=10)[0]
    except subprocess.TimeoutExpired:
        _kill(process)
        return process.communicate()[0]


def _kill(process: subprocess.Popen[str]) -> None:
    """Kills whatever is left of the job: ranks have process groups of their own."""
    try:
        left = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        left = []
    for child in left:
        child.kill()
    process.kill()
    psutil.wait_procs(left, timeout=5)


def _outputs(folder: Path) -> list[str]:
    """The launcher's files below folder, .../rank.N/stdout and stderr."""
    found: dict[int, str] = {}
    for file in sorted(folder.rglob("std*"), reverse=True):  # stdout first
        rank = int(re.sub(r"\D", "", file.parent.name))
        text = re.sub(r"\[[\d,]+\]<std(out|err)>:", "", file.read_text(errors="replace"))
        found[rank] = found.get(rank, "") + text
    return [found[rank] for rank in sorted(found)]
