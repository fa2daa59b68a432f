"""Runs the benchmark's ranks: on the hosts of a laboratory, or on this machine."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from omnihvd.bench.lab import Lab, mpirun_env, run
from omnihvd.bench.patterns import Point

WORKER = [sys.executable, "-m", "omnihvd.bench.worker"]
PORT = 29511
# Open MPI's segmented ring, which is the faster of its algorithms for large tensors over TCP.
RING = {"coll_tuned_use_dynamic_rules": "1", "coll_tuned_allreduce_algorithm": "5"}


class BenchError(RuntimeError):
    """A benchmark that cannot run; the message says what to do."""


@dataclass
class Job:
    """What one launch measures."""

    backend: str
    points: Sequence[Point]
    min_seconds: float
    min_runs: int
    timeout: float


class Hosts:
    """Emulated hosts, one rank on each; dedicated aggregators have hosts of their own."""

    def __init__(self, ranks: int, rate: str | None, delay: str | None, dedicated: bool) -> None:
        self.ranks = ranks
        self.rate, self.delay = rate, delay
        self.lab = Lab(ranks * (2 if dedicated else 1), rate=rate, delay=delay)

    def link_rate(self) -> float | None:
        """Payload of one TCP stream, in bytes/s."""
        return self.lab.raw_rate(seconds=2)

    def launch(self, job: Job) -> list[dict[str, Any]]:
        env = {"MASTER_ADDR": self.lab.hosts[0].name, "MASTER_PORT": str(PORT)}
        mca = RING if job.backend == "horovod-ring" else None
        with contextlib.ExitStack() as stack:
            if job.backend == "omnihvd-dedicated":
                env |= stack.enter_context(self._aggregators())
            return _run_job(
                job,
                lambda words: self.lab.mpirun(
                    words,
                    hosts=self.lab.hosts[: self.ranks],
                    mca=mca,
                    env={**_environment(job.backend), **env, "GLOO_SOCKET_IFNAME": "eth0"},
                    timeout=job.timeout,
                    stdout=subprocess.DEVNULL,
                ),
            )

    @contextlib.contextmanager
    def _aggregators(self) -> Iterator[dict[str, str]]:
        secret = secrets.token_hex(16)
        env = {**os.environ, **_environment("omnihvd-dedicated"), "OMNIHVD_SECRET": secret}
        started, addresses = [], []
        try:
            for host in self.lab.hosts[self.ranks :]:
                bind = f"{host.address}:7000"
                words = [sys.executable, "-m", "omnihvd", "aggregator", "--bind", bind]
                process = subprocess.Popen(
                    host.command(words),
                    env=env,
                    stdout=subprocess.PIPE,
                    text=True,
                    start_new_session=True,
                )
                started.append(process)
                assert process.stdout is not None
                if "aggregator at" not in process.stdout.readline():
                    raise BenchError(f"no aggregator on {host.name}")
                addresses.append(bind)
            yield {"OMNIHVD_AGGREGATORS": ",".join(addresses), "OMNIHVD_SECRET": secret}
        finally:
            for process in started:  # nsenter, which passes no signals on, and its descendants
                os.killpg(process.pid, signal.SIGTERM)
            for process in started:
                process.wait(20)

    def close(self) -> None:
        self.lab.close()


class ThisMachine:
    """All ranks on this machine, over shared memory; needs no root."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.rate = self.delay = None

    def link_rate(self) -> float | None:
        return None

    def launch(self, job: Job) -> list[dict[str, Any]]:
        env = {**os.environ, **mpirun_env(self.ranks), **_environment(job.backend)}
        env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(PORT)}
        env["OMPI_MCA_mpi_yield_when_idle"] = "1"  # each of Horovod's ranks has two polling threads
        mpirun = ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", str(self.ranks)]
        if job.backend == "horovod-ring":
            mpirun += [word for name, value in RING.items() for word in ("-mca", name, value)]
        return _run_job(
            job,
            lambda words: run(
                [*mpirun, *words], env=env, timeout=job.timeout, stdout=subprocess.DEVNULL
            ),
        )

    def close(self) -> None:
        pass


def _environment(backend: str) -> dict[str, str]:
    scripts = sysconfig.get_path("scripts")
    root = str(Path(__file__).parents[2])
    return {
        "PATH": scripts + os.pathsep + os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")])),
        "OMP_NUM_THREADS": "1",
        "OMNIHVD_ENABLE": str(int(backend.startswith("omnihvd"))),
    }


def _run_job(job: Job, start: Any) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "answers"
        description = {
            "backend": job.backend,
            "points": [asdict(point) for point in job.points],
            "min_seconds": job.min_seconds,
            "min_runs": job.min_runs,
            "output": str(output),
        }
        start([*WORKER, json.dumps(description)])
        if not output.exists():
            raise BenchError(f"{job.backend} measured nothing")
        return [json.loads(line) for line in output.read_text().splitlines()]
