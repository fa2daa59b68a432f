"""The dedicated or in-network aggregator of a job, which may be killed and started again."""

from __future__ import annotations

import os
import signal
import socket
import time
import traceback
from pathlib import Path

from benchmarks.campaign import place
from benchmarks.campaign.plan import SECRET, Job

SOON_S = 10


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Aggregator:
    def __init__(self, job: Job, folder: Path) -> None:
        self.job, self.log = job, folder / "aggregator"
        self.address = f"127.0.0.1:{free_port()}"
        self.killed = False
        self.start()

    def start(self) -> None:
        """Returns once it says that it listens."""
        self.killed = False
        said, says = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            self._serve(says)
        os.close(says)
        first = os.read(said, 1000)
        os.close(said)
        assert b"127.0.0.1" in first, self.log.read_text()

    def _serve(self, says: int) -> None:
        status = 1
        try:
            place.end_with_parent(signal.SIGKILL)
            os.dup2(says, 1)
            log = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(log, 2)
            os.environ["OMNIHVD_SECRET"] = SECRET
            for name in ("UCX_TLS", "OMNIHVD_TRANSPORT"):
                if name in self.job.env:
                    os.environ[name] = self.job.env[name]
            from omnihvd.cli import main

            status = main(["aggregator", f"--{self.job.aggregator}", self.address])
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)

    def kill(self) -> None:
        self.killed = True
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)

    def end(self) -> str:
        """Stops it. Returns an error, or nothing."""
        if self.killed:
            return ""
        os.kill(self.pid, signal.SIGTERM)
        end = time.monotonic() + SOON_S
        while time.monotonic() < end:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return f"ended with status {status}: {self.log.read_text()}" if status else ""
            time.sleep(0.002)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        return f"did not end within {SOON_S} s of SIGTERM"
