"""Asks other hosts' ranks for `omnihvd top`, over ssh, as launchers do.

Each host runs `omnihvd top --json` while this command runs. ssh controls access: omnihvd opens no
port.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys
import tempfile
import threading
import time

from omnihvd.observe.answers import FORM, Seen, Unfit, fitting, parsed

SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10")  # no password prompts
NAME = re.compile(r"\w[\w.-]*", re.ASCII)  # host names that jobs may pass to ssh
MOST_BYTES = 1 << 24  # of a host's answer


class OtherHost:
    def __init__(self, name: str, interval: float) -> None:
        """interval: seconds between answers."""
        self.name = name
        self._last, self._came = Seen([], [f"{name}: no answer yet"]), threading.Event()
        self._said = tempfile.TemporaryFile()  # noqa: SIM115
        self.ssh = subprocess.Popen(
            [*SSH, "--", name, _command(interval)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._said,
            start_new_session=True,  # an interrupt is this process's to handle
        )
        threading.Thread(target=self._follow, name=f"omnihvd top {name}", daemon=True).start()

    def answer(self, end: float) -> Seen:
        """Its last answer. Waits for the first one until `end`."""
        self._came.wait(max(0.0, end - time.monotonic()))
        return self._last

    def _follow(self) -> None:
        assert self.ssh.stdout
        while line := self.ssh.stdout.readline(MOST_BYTES):
            with contextlib.suppress(Unfit):  # output of a login shell
                found = fitting(parsed(line), {"processes": [FORM], "problems": [""]})
                problems = [f"{self.name}: {problem}" for problem in found["problems"]]
                self._last = Seen(found["processes"], problems)
                self._came.set()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.ssh.wait(1)
        self.close()
        self._said.seek(0)
        lines = self._said.read(MOST_BYTES).decode(errors="replace").split("\n")
        why = [line.strip() for line in lines if line.strip()]
        problem = why[-1][:200] if why else f"ssh ended with {self.ssh.returncode}"
        self._last = Seen([], [f"{self.name}: {problem}"])
        self._came.set()

    def close(self) -> None:
        self.ssh.terminate()
        try:
            self.ssh.wait(1)
        except subprocess.TimeoutExpired:
            self.ssh.kill()
            self.ssh.wait()


def _command(interval: float) -> str:
    """For the other host's shell: this Python, with the packages that this one finds."""
    path = os.environ.get("PYTHONPATH")
    words = ["env", f"PYTHONPATH={path}"] if path else []
    words += [sys.executable, "-m", "omnihvd", "top", "--json", "--interval", str(interval)]
    return shlex.join(words)
