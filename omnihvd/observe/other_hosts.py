"""Other hosts' ranks, for `omnihvd top`: over ssh, as launchers reach them.

On each host runs `omnihvd top --answer`, which asks the local sockets there, for as long as
somebody looks here: for each line that it is sent it writes one, of JSON, and it ends with the
connection. ssh says who may: nothing listens.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shlex
import subprocess
import sys
import tempfile
import time
from typing import Any

SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10")  # nobody is asked for a password


class OtherHost:
    """problem: why there are no figures; empty where there are."""

    def __init__(self, name: str) -> None:
        self.name, self.problem = name, "no answer yet"
        self._found: list[dict[str, Any]] = []
        self._asked, self._read = False, b""
        self._said = tempfile.TemporaryFile()  # noqa: SIM115
        self._ssh = subprocess.Popen(
            [*SSH, name, _command()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            start_new_session=True,  # an interrupt is this process's to handle
        )

    def ask(self) -> None:
        """Returns at once."""
        if not self._asked and self._ssh.stdin:
            self._asked = True
            with contextlib.suppress(OSError):  # it has ended, as its output says, too
                self._ssh.stdin.write(b"\n")
                self._ssh.stdin.flush()

    def answer(self, seconds: float) -> list[dict[str, Any]]:
        """The host's processes; those of the answer before where none comes in that time."""
        end = time.monotonic() + seconds
        while self._asked:
            line, whole, rest = self._read.partition(b"\n")
            if whole:
                self._read = rest
                with contextlib.suppress(ValueError):  # what a shell says at its beginning
                    self._found = list(json.loads(line)["processes"])
                    self._asked, self.problem = False, ""
                continue
            assert self._ssh.stdout
            if not select.select([self._ssh.stdout], [], [], max(0.0, end - time.monotonic()))[0]:
                break
            part = os.read(self._ssh.stdout.fileno(), 1 << 16)
            if not part:
                self._end()
                break
            self._read += part
        return self._found

    @property
    def ended(self) -> bool:
        return self._ssh.poll() is not None

    def _end(self) -> None:
        self._found = []
        self.close()
        self._said.seek(0)
        lines = self._said.read().decode(errors="replace").split("\n")
        why = [line.strip() for line in lines if line.strip()]
        self.problem = why[-1] if why else f"ssh ended with {self._ssh.returncode}"

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._ssh.stdin.close()  # type: ignore[union-attr]
        try:
            self._ssh.wait(1)
        except subprocess.TimeoutExpired:
            self._ssh.kill()
            self._ssh.wait()


def _command() -> str:
    """For the other host's shell: this Python, with the packages that this one finds."""
    path = os.environ.get("PYTHONPATH")
    words = ["env", f"PYTHONPATH={path}"] if path else []
    return shlex.join([*words, sys.executable, "-m", "omnihvd", "top", "--answer"])
