"""Starts Python ranks that need not import PyTorch or TensorFlow.

A server imports the framework once and forks a process for each rank. Each rank has its own
memory, environment and end, as if it had been started. Two things differ from a real start: the
framework is there before omnihvd, and a set of strings has the same order on all ranks. Tests of
starting and of imports ask for `fresh` ranks. With torch 2.13 a rank that makes an optimizer takes
0.5 s of a processor, and 2.9 if it imports all by itself after the first import of torch.
"""

from __future__ import annotations

import atexit
import functools
import os
import re
import secrets
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from environment import ENVIRONMENT, end_with_parent

HERE = Path(__file__).parent
# Under either one each process is to be started by itself.
WATCHED_BY = ("LD_PRELOAD", "COVERAGE_PROCESS_START")


def warm(words: Sequence[object]) -> list[str]:
    """For `python SCRIPT WORDS`: a command that does the same with less work, if there is one.
    The script, or one among its words, imports a framework."""
    python, script, *others = map(str, words)
    found = map(framework_of, (script, *others)) if script.endswith(".py") else ()
    framework = next(filter(None, found), None) if python == sys.executable else None
    if framework is None or any(name in os.environ for name in WATCHED_BY):
        return [python, script, *others]
    process, name = server(framework)
    client = str(HERE / "client.py")
    return [python, "-ISs", client, str(process), name, str(Path(script).absolute()), *others]


def framework_of(script: str) -> str | None:
    """The one that a script imports."""
    if not script.endswith(".py") or not Path(script).is_file():
        return None
    text = Path(script).read_text()
    for name in ("tensorflow", "torch"):
        if re.search(rf"^ *(import|from) .*\b{name}\b", text, re.M):
            return name
    return None


@functools.cache
def server(framework: str) -> tuple[int, str]:
    """Its process and the name of its abstract socket. It ends with this process.

    A file would be removed by the first fork of this process that ends as Python does.
    """
    name = f"warm-{secrets.token_hex(8)}"
    environment = {**os.environ, **ENVIRONMENT}
    environment.pop("PYTHONPATH", None)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"\0{name}")
        listening.listen(64)
        number = listening.fileno()
        process = subprocess.Popen(
            [sys.executable, HERE / "server.py", str(number), framework],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[number],
            start_new_session=True,
            preexec_fn=end_with_parent,
        )
    atexit.register(process.kill)
    return process.pid, name
