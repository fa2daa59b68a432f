"""Jobs under launchers: horovodrun (torch, Gloo as controller), and Open MPI's mpirun with the
library preloaded. A launcher ends all ranks when one ends, so these may say nothing after a fault.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import sysconfig
import time
from multiprocessing.connection import Listener
from pathlib import Path
from typing import Any, Callable

from benchmarks.campaign import place
from benchmarks.campaign.job import Running
from benchmarks.campaign.plan import LAUNCHERS, Fault, Job, make_sums, settings
from benchmarks.elastic_hosts import QUICK

ROOT = Path(__file__).parents[2]
LAUNCHER = -1  # its place among the ranks


def plan_launched(seed: int, isolated: bool) -> Job:
    """The seed's job under a launcher. The same seed plans the same job."""
    prng = random.Random(f"launched {seed}")
    backend, size = prng.choice(LAUNCHERS), prng.choice((2, 2, 3, 3, 4))
    hosts = "".join(sorted((prng.choice(("a", "ab", "abc")) * size)[:size]))
    env = settings(prng, "communicator")
    sums = make_sums(prng, backend, env, backend == "mpirun" and "OMNIHVD_ARITHMETIC" not in env)
    job = Job(seed, backend, hosts, [tuple(range(size))], [sums], env, [], False)
    job.replay = " --launchers"

    def add(kind: str, value: float = 0) -> None:
        after = prng.randrange(size * len(sums))
        rank = -1 if kind in ("suspend", "full") else prng.randrange(size)
        job.faults.append(Fault(kind, rank, after, prng.uniform(0, 0.01), value))

    for _ in range(prng.choice((0, 8, 16, 32))):
        add("stop", 10 ** prng.uniform(-3, -1))
    kind = prng.random()
    if kind < 0.6:
        add("kill")
    elif kind < 0.7:
        add("exit")
    elif kind < 0.8:
        add("memory", 10 ** prng.uniform(7, 8.5))
    elif kind < 0.85:
        add("full")
    elif kind < 0.9:
        add("suspend", 10 ** prng.uniform(-2, -0.5))
    return job if isolated else job.without_namespaces()


class Launched(Running):
    """Its ranks are a launcher's children, and say what came of sums over a socket."""

    def start(self) -> None:
        job = self.job
        job.env.update(CAMPAIGN_SOCKET=str(self.folder / "socket"), TMPDIR=str(self.folder))
        self.listener = Listener(job.env["CAMPAIGN_SOCKET"], "AF_UNIX")
        path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])
        paths = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
        own = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        own["OMPI_MCA_btl_vader_single_copy_mechanism"] = "none"  # needs ptrace
        with (self.folder / f"rank-{LAUNCHER}").open("wb") as log:
            self.launcher = subprocess.Popen(
                self.command(),
                env={**os.environ, **own, **job.env, "PATH": path, "PYTHONPATH": paths},
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=lambda: place.end_with_parent(signal.SIGTERM),  # it ends its ranks
            )
        self.pids[LAUNCHER] = self.launcher.pid
        self.watches[LAUNCHER] = os.pidfd_open(self.launcher.pid)

    def command(self) -> list[str]:
        size, rank = str(self.job.size), [sys.executable, "-m", "benchmarks.campaign.launched_rank"]
        if self.job.backend == "mpirun":
            from omnihvd.intercept import mpi_abi

            preload = f"LD_PRELOAD={mpi_abi.shim()}"
            return ["mpirun", "--oversubscribe", "-np", size, "env", preload, *rank]
        words = ["--gloo", "-np", size, "--network-interface", "lo"]
        return [sys.executable, str(QUICK), *words, *rank]

    def more_sources(self) -> dict[Any, Callable[[], None]]:
        listening: Any = self.listener._listener  # type: ignore[attr-defined]
        return {listening._socket: self.accept}

    def accept(self) -> None:
        pipe = self.listener.accept()
        rank, pid = pipe.recv()
        pipe.send(self.job)
        self.pids[rank], self.pipes[0, rank] = pid, pipe

    def lives(self, rank: int) -> bool:
        return (0, rank) in self.pipes

    def ranks(self) -> list[int]:
        return [rank for _, rank in self.pipes]

    def signal(self, rank: int, number: int) -> None:
        # A rank that ends while it is stopped has to go on, too.
        if self.lives(rank) or (number == signal.SIGCONT and rank in self.pids):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pids[rank], number)

    def abort(self) -> None:
        for number in (signal.SIGCONT, signal.SIGABRT):
            for rank in self.ranks():
                self.signal(rank, number)
        time.sleep(1)
        self.record.hangs = "the job " + " ".join(f"rank {rank}" for rank in self.ranks())
        os.kill(self.launcher.pid, signal.SIGTERM)
        time.sleep(1)
        os.kill(self.launcher.pid, signal.SIGKILL)
        self.process_ended(LAUNCHER)

    def finish(self) -> None:
        self.record.over = time.monotonic()
        for key in list(self.pipes):
            while key in self.pipes and self.pipes[key].poll():
                self.served(*key)
        self.listener.close()
        super().finish()
        self.explain()

    def explain(self) -> None:
        """Errors of MPI name nobody: omnihvd's line before them does."""
        for result in self.record.results:
            if result.verdict.startswith("failed"):
                log = self.record.logs.get(result.rank, "").splitlines()
                said = [line for line in log if "omnihvd error" in line]
                result.text = "; ".join([result.text, *said])

    def known(self, name: str) -> bool:
        """Open MPI leaves its folder and its memory where ranks are killed."""
        return name == "socket" or name.startswith(("ompi.", "vader_segment"))
