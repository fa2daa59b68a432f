"""Dedicated aggregators in processes of their own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

SECRET = "the secret of a test"


class Server:
    def __init__(
        self,
        option: str = "--bind",
        more: Sequence[str] = (),
        folder: Path | None = None,  # that has another omnihvd
        **env: str,
    ) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "omnihvd", "aggregator", option, "127.0.0.1:0", *more],
            cwd=folder,
            env={**os.environ, "OMNIHVD_SECRET": SECRET, "OMNIHVD_LOG": "info", **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout and self.process.stderr
        line = self.process.stdout.readline()
        assert "127.0.0.1:" in line, self.process.stderr.read()
        self.address = line.split()[-1]
        self.log: list[str] = []
        self._reader = threading.Thread(target=self.log.extend, args=(self.process.stderr,))
        self._reader.start()

    def end(self) -> str:
        """Stops it, as a user would; returns its log."""
        self.process.send_signal(signal.SIGTERM)
        try:
            assert self.process.wait(20) == 0
        finally:
            self.process.kill()
            self._reader.join()
        return "".join(self.log)


@contextlib.contextmanager
def servers(count: int, **env: str) -> Iterator[list[Server]]:
    started = [Server(**env) for _ in range(count)]
    try:
        yield started
    finally:
        for server in started:
            server.process.kill()


def addresses(started: list[Server]) -> list[str]:
    return [server.address for server in started]
