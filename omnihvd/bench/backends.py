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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from omnihvd.bench.lab import Lab, mpirun_env, run, yielding
from omnihvd.bench.patterns import Point

WORKER = [sys.executable, "-m", "omnihvd.bench.worker"]
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
    max_seconds: float | None = None  # of samples at a point, however few these are
    env: Mapping[str, str] = field(default_factory=dict)  # beside what each backend gets


class Hosts:
    """Emulated hosts, with so many ranks in all, per_host on each; dedicated aggregators, one for
    each of these hosts, have hosts of their own."""

    def __init__(
        self,
        ranks: int,
        rate: str | None,
        delay: str | None = None,
        dedicated: bool = False,
        per_host: int = 1,
        share_cores: bool = False,
    ) -> None:
        if ranks % per_host:
            raise BenchError(f"{ranks} ranks are no whole number of hosts with {per_host} each")
        self.per_host, self.count = per_host, ranks // per_host
        hosts = self.count * (2 if dedicated else 1)
        self.lab = Lab(hosts, rate=rate, delay=delay, share_cores=share_cores)

    def link_rate(self, seconds: float = 2) -> float | None:
        """Payload of one TCP stream, in bytes/s; None: there is one host."""
        return self.lab.raw_rate(seconds=seconds) if len(self.lab.hosts) > 1 else None

    def launch(self, job: Job) -> list[dict[str, Any]]:
        env = _environment(job.backend) | _meeting_place(self.lab.hosts[0].name)
        env |= {"GLOO_SOCKET_IFNAME": "eth0", **job.env}
        mca = RING if job.backend == "horovod-ring" else None
        with contextlib.ExitStack() as stack:
            if job.backend == "omnihvd-dedicated":
                env |= stack.enter_context(self._aggregators())
            return _run_job(
                job,
                lambda words: self.lab.mpirun(
                    words,
                    hosts=self.lab.hosts[: self.count],
                    ranks_per_host=self.per_host,
                    mca=mca,
                    env=env,
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
            for host in self.lab.hosts[self.count :]:
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

    def __init__(self, ranks: int, share_cores: bool = False) -> None:
        self.ranks, self.share_cores = ranks, share_cores

    def link_rate(self) -> float | None:
        return None

    def launch(self, job: Job) -> list[dict[str, Any]]:
        env = {**os.environ, **mpirun_env(self.ranks), **_environment(job.backend)}
        env |= {**_meeting_place("127.0.0.1"), **job.env}
        mpirun = ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", str(self.ranks)]
        mca = RING if job.backend == "horovod-ring" else {}
        if self.share_cores:  # each of Horovod's ranks has two polling threads
            mca = {**mca, **yielding(2 * self.ranks)}
        mpirun += [word for name, value in mca.items() for word in ("-mca", name, value)]
        return _run_job(
            job,
            lambda words: run(
                [*mpirun, *words], env=env, timeout=job.timeout, stdout=subprocess.DEVNULL
            ),
        )

    def close(self) -> None:
        pass


def _meeting_place(host: str) -> dict[str, str]:
    ports = {"MASTER_PORT": "29511", "MEETING_PORT": "29512"}
    return {"MASTER_ADDR": host, **ports, "MEETING_KEY": secrets.token_hex(16)}


def _environment(backend: str) -> dict[str, str]:
    scripts = sysconfig.get_path("scripts")
    root = str(Path(__file__).parents[2])
    return {
        "PATH": scripts + os.pathsep + os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")])),
        "OMP_NUM_THREADS": "1",
        "OMNIHVD_ENABLE": str(int(backend.startswith("omnihvd"))),
        "OMNIHVD_LOG": os.environ.get("OMNIHVD_LOG", "error"),  # notices would be between rows
    }


def _run_job(job: Job, start: Any) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "answers"
        description = {
            "backend": job.backend,
            "points": [asdict(point) for point in job.points],
            "min_seconds": job.min_seconds,
            "min_runs": job.min_runs,
            "max_seconds": job.max_seconds,
            "output": str(output),
        }
        start([*WORKER, json.dumps(description)])
        if not output.exists():
            raise BenchError(f"{job.backend} measured nothing")
        return [json.loads(line) for line in output.read_text().splitlines()]
