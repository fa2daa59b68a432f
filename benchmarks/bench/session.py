"""The ranks of one backend. They measure on command, and are stopped in between.

Several backends can thus take turns within seconds on one machine. A backend that merely waited
would go on negotiating and polling.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.bench.reducers import DEDICATED
from benchmarks.bench.settings import Setting
from benchmarks.bench.worker import Visit

WORKER = [sys.executable, "-m", "benchmarks.bench.worker"]
START_TIMEOUT_S = 90.0  # until all ranks have met
END_TIMEOUT_S = 15.0
RANKS = (b"OMPI_COMM_WORLD_RANK=", b"PMI_RANK=")  # in the environment of ranks, not of launchers
ports = itertools.count(29_511, 2)


class BenchError(RuntimeError):
    """A benchmark that cannot run; the message says what to do."""


class Session:
    """A context manager. command: a worker's arguments -> the command that starts all ranks."""

    _pids: Sequence[int] = ()

    def __init__(
        self,
        backend: str,
        setting: Setting,
        command: Callable[[Sequence[str]], Sequence[str]],
        env: Mapping[str, str],
        host: str,
        timeout: float,
    ) -> None:
        """host: rank 0's name. timeout: seconds, of a visit."""
        self.name, self.timeout = f"{backend} {setting.name}".strip(), timeout
        key, port = secrets.token_hex(16), next(ports)
        env = {**env, "MASTER_ADDR": host, "MASTER_PORT": str(port), "MEETING_KEY": key}
        env["MEETING_PORT"] = str(port + 1)
        self._exit = contextlib.ExitStack()
        try:
            folder = self._exit.enter_context(tempfile.TemporaryDirectory())
            listener = self._exit.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(f"{folder}/ranks")
            listener.listen()
            self.process = subprocess.Popen(
                command([*WORKER, backend, f"{folder}/ranks"]),
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
            self._exit.callback(self._end)
            self._connection = self._accepted(listener)
            self._pids = _ranks(key.encode())
            self._signal(signal.SIGSTOP)
        except BaseException:
            self._exit.close()
            raise

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self._exit.close()

    def visit(self, visit: Visit) -> dict[str, Any]:
        """Returns rank 0's answer; the ranks are stopped afterwards."""
        self._signal(signal.SIGCONT)
        self._connection.settimeout(self.timeout)
        try:
            self._connection.sendall(visit.as_json().encode() + b"\n")
            line = self._lines.readline()
        except TimeoutError:
            raise BenchError(f"{self.name}: no answer for {self.timeout:.0f} s") from None
        if not line:
            raise BenchError(f"{self.name} failed at {visit.point}")
        self._signal(signal.SIGSTOP)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _accepted(self, listener: socket.socket) -> socket.socket:
        listener.settimeout(0.2)
        deadline = time.monotonic() + START_TIMEOUT_S
        while self.process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(TimeoutError, socket.timeout):
                connection = self._exit.enter_context(listener.accept()[0])
                self._lines = self._exit.enter_context(connection.makefile("r"))
                return connection
        raise BenchError(f"{self.name} does not start")

    def _signal(self, number: signal.Signals) -> None:
        for pid in self._pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _end(self) -> None:
        """Waits for the ranks to end. Close their connection first: that ends them."""
        self._signal(signal.SIGCONT)
        try:
            self.process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)  # nsenter passes no signals on to its descendants
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def _ranks(key: bytes) -> list[int]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            env = (process / "environ").read_bytes()
            if key in env and any(name in env for name in RANKS):
                found.append(int(process.name))
    return found


def environment(backend: str) -> dict[str, str]:
    """The environment of a backend's ranks, without the launcher's and the settings' variables."""
    scripts = sysconfig.get_path("scripts")
    root = str(Path(__file__).parents[2])
    return {
        "PATH": scripts + os.pathsep + os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")])),
        "OMP_NUM_THREADS": "1",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        "OMNIHVD_ENABLE": str(int(backend.startswith("omnihvd") or backend in DEDICATED)),
        "OMNIHVD_LOG": os.environ.get("OMNIHVD_LOG", "error"),  # notices would come between rows
    }
