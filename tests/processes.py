"""Runs processes beside each other, without a launcher, in bounded time."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from environment import end_with_parent
from warm import warm


@dataclass
class Ended:
    returncode: int
    output: str  # standard output and error


def free_port() -> int:
    """A port of no other job: whoever asks for any port gets another one, for a while."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def run_beside(
    commands: Sequence[Sequence[object]],
    environments: Sequence[Mapping[str, str]],
    *,
    timeout: float,
    check: bool = True,
    fresh: bool = False,
) -> list[Ended]:
    """Runs each command in its environment, all at once, and returns what became of them. A Python
    script of a framework is run by a warm Python (warm/) unless fresh is true. Raises
    AssertionError with all output when one fails (unless check is false), and after timeout
    seconds, with the stacks of all Python processes among them (PYTHONFAULTHANDLER)."""
    deadline = time.monotonic() + timeout
    processes: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            for i, (command, environment) in enumerate(zip(commands, environments)):
                with (Path(folder) / str(i)).open("w") as output:
                    processes.append(
                        subprocess.Popen(
                            list(map(str, command)) if fresh else warm(command),
                            env=dict(environment),
                            stdin=subprocess.DEVNULL,
                            stdout=output,
                            stderr=subprocess.STDOUT,
                            start_new_session=True,
                            preexec_fn=end_with_parent,
                        )
                    )
            late = not _all_end(processes, deadline)
            if late:
                _abort(processes)
        finally:
            _kill(processes)
        ended = [
            Ended(p.returncode, (Path(folder) / str(i)).read_text(errors="replace"))
            for i, p in enumerate(processes)
        ]
    said = "\n".join(f"--- rank {i}: {e.returncode}\n{e.output}" for i, e in enumerate(ended))
    assert not late, f"not done after {timeout:.0f} s\n{said}"
    if check:
        assert all(e.returncode == 0 for e in ended), said
    return ended


def _all_end(processes: Sequence[subprocess.Popen[bytes]], deadline: float) -> bool:
    try:
        for process in processes:
            process.wait(max(deadline - time.monotonic(), 0))
    except subprocess.TimeoutExpired:
        return False
    return True


def _abort(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Those that are left write their stacks."""
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGABRT)
    _all_end(processes, time.monotonic() + 5)


def _kill(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """With all that they have started."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
