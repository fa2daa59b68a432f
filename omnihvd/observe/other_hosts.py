"""Other hosts' ranks, for `omnihvd top`: over ssh, as launchers reach them.

On each host runs `omnihvd top --json`, for as long as somebody looks here. ssh says who may:
nothing listens.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import shlex
import subprocess
import sys
import tempfile
import time

from omnihvd.observe.answers import FORM, Seen, Unfit, fitting, parsed

SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10")  # nobody is asked for a password
NAME = re.compile(r"\w[\w.-]*", re.ASCII)  # what jobs may call a host, that ssh is given
MOST_BYTES = 1 << 24  # of a host's answer, and of what is read of it at a time


class OtherHost:
    def __init__(self, name: str, interval: float) -> None:
        """interval: seconds, of its answers."""
        self.name = name
        self._last, self._read = Seen([], [f"{name}: no answer yet"]), b""
        self._said = tempfile.TemporaryFile()  # noqa: SIM115
        self._ssh = subprocess.Popen(
            [*SSH, "--", name, _command(interval)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._said,
            start_new_session=True,  # an interrupt is this process's to handle
        )
        self._answers = 0

    def answer(self, end: float) -> Seen:
        """Its last one; until `end` the first is waited for."""
        out, left = self._ssh.stdout, MOST_BYTES
        while out and not out.closed and left > 0:
            wait = 0.0 if self._answers else max(0.0, end - time.monotonic())
            if not select.select([out], [], [], wait)[0]:
                break
            part = os.read(out.fileno(), 1 << 16)
            left -= len(part)
            *lines, self._read = (self._read + part).split(b"\n")
            for line in lines:
                self._take(line)
            if not part or len(self._read) > MOST_BYTES:
                self._end()
        return self._last

    def _take(self, line: bytes) -> None:
        with contextlib.suppress(Unfit):  # what a shell says at its beginning
            found = fitting(parsed(line), {"processes": [FORM], "problems": [""]})
            problems = [f"{self.name}: {problem}" for problem in found["problems"]]
            self._last = Seen(found["processes"], problems)
            self._answers += 1

    @property
    def ended(self) -> bool:
        return self._ssh.poll() is not None

    def _end(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._ssh.wait(1)
        self.close()
        self._said.seek(0)
        lines = self._said.read(MOST_BYTES).decode(errors="replace").split("\n")
        why = [line.strip() for line in lines if line.strip()]
        problem = why[-1][:200] if why else f"ssh ended with {self._ssh.returncode}"
        self._last = Seen([], [f"{self.name}: {problem}"])

    def close(self) -> None:
        if self._ssh.stdout:
            self._ssh.stdout.close()
        self._ssh.terminate()
        try:
            self._ssh.wait(1)
        except subprocess.TimeoutExpired:
            self._ssh.kill()
            self._ssh.wait()


def _command(interval: float) -> str:
    """For the other host's shell: this Python, with the packages that this one finds."""
    path = os.environ.get("PYTHONPATH")
    words = ["env", f"PYTHONPATH={path}"] if path else []
    words += [sys.executable, "-m", "omnihvd", "top", "--json", "--interval", str(interval)]
    return shlex.join(words)
