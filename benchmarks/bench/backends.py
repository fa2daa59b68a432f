"""Runs the benchmark's ranks on the hosts of a lab, or on this machine."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.bench import mpich, published
from benchmarks.bench.lab import Lab, mpirun_env
from benchmarks.bench.lab_processes import find_mpirun
from benchmarks.bench.reducers import DEDICATED, PUBLISHED
from benchmarks.bench.session import BenchError, Session, environment
from benchmarks.bench.settings import AS_IT_IS, Setting

Command = Callable[[Sequence[str]], Sequence[str]]  # from a worker's to the job's
TIMEOUT_S = 300.0  # of a visit
ports = itertools.count(7000)  # of aggregators, those of each session
CONGESTION = "/proc/sys/net/ipv4/tcp_congestion_control"


def _environment(
    ranks: int, backend: str, setting: Setting, env: Mapping[str, str] | None
) -> dict[str, str]:
    own = mpich.environment() if backend == "mpich" else {}
    own |= published.environment() if backend in PUBLISHED else {}
    return {**mpirun_env(ranks), **environment(backend), **own, **setting.env, **(env or {})}


class Hosts:
    """Emulated hosts with per_host ranks each. Dedicated aggregators, one for each of these hosts,
    have hosts of their own."""

    def __init__(
        self,
        ranks: int,
        rate: str | None,
        delay: str | None = None,
        dedicated: bool = False,
        per_host: int = 1,
    ) -> None:
        if ranks % per_host:
            raise BenchError(f"{ranks} ranks are no whole number of hosts with {per_host} each")
        self.per_host, self.count = per_host, ranks // per_host
        hosts = self.count * (2 if dedicated else 1)
        self.lab = Lab(hosts, rate=rate, delay=delay)

    def link_rate(self, seconds: float = 2) -> float | None:
        """Payload of one TCP stream, in bytes/s; None: there is one host."""
        return self.lab.raw_rate(seconds=seconds) if len(self.lab.hosts) > 1 else None

    def congestion_control(self) -> str:
        """The hosts' TCP congestion control."""
        command = self.lab.hosts[0].command(["cat", CONGESTION])
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    @contextlib.contextmanager
    def start(
        self,
        backend: str,
        setting: Setting = AS_IT_IS,
        env: Mapping[str, str] | None = None,
        timeout: float = TIMEOUT_S,
    ) -> Iterator[Session]:
        """Starts the backend's ranks."""
        hosts, ranks = self.lab.hosts[: self.count], self.count * self.per_host
        env = {**_environment(ranks, backend, setting, env), "GLOO_SOCKET_IFNAME": "eth0"}
        with contextlib.ExitStack() as stack:
            if backend in DEDICATED:
                env |= stack.enter_context(self._aggregators())
            command: Command = functools.partial(
                self.lab.mpirun_command,
                hosts=hosts,
                ranks_per_host=self.per_host,
                mca=setting.mca,
            )
            if backend == "mpich":
                command = functools.partial(mpich.mpiexec_on, hosts, self.per_host)
            session = Session(backend, setting, command, env, hosts[0].name, timeout)
            yield stack.enter_context(session)

    @contextlib.contextmanager
    def _aggregators(self) -> Iterator[dict[str, str]]:
        secret = secrets.token_hex(16)
        env = {**os.environ, **environment("omnihvd-dedicated"), "OMNIHVD_SECRET": secret}
        started, addresses, port = [], [], next(ports)
        try:
            for host in self.lab.hosts[self.count :]:
                bind = f"{host.address}:{port}"
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
            for process in started:  # nsenter passes no signals on to its descendants
                os.killpg(process.pid, signal.SIGTERM)
            for process in started:
                process.wait(20)

    def close(self) -> None:
        self.lab.close()


class ThisMachine:
    """All ranks on this machine, over shared memory; needs no root. Raises LabError without an MPI:
    mpirun starts the ranks of every backend."""

    count = 1

    def __init__(self, ranks: int) -> None:
        self.ranks = self.per_host = ranks
        self._mpirun = find_mpirun()

    def link_rate(self, seconds: float = 0) -> float | None:
        return None

    def congestion_control(self) -> str:
        return Path(CONGESTION).read_text().strip()

    @contextlib.contextmanager
    def start(
        self,
        backend: str,
        setting: Setting = AS_IT_IS,
        env: Mapping[str, str] | None = None,
        timeout: float = TIMEOUT_S,
    ) -> Iterator[Session]:
        env = _environment(self.ranks, backend, setting, env)
        mpirun = [self._mpirun, "--oversubscribe", "--bind-to", "none", "-np", str(self.ranks)]
        mpirun += [word for name, value in setting.mca.items() for word in ("-mca", name, value)]

        def command(words: Sequence[str]) -> list[str]:
            return mpich.mpiexec(words, self.ranks) if backend == "mpich" else [*mpirun, *words]

        with Session(backend, setting, command, env, "127.0.0.1", timeout) as session:
            yield session

    def close(self) -> None:
        pass
