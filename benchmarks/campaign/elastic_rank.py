"""A process of an elastic job: python -m benchmarks.campaign.elastic_rank"""

from __future__ import annotations

import faulthandler
import os
import sys
import time
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any

from benchmarks.campaign.elastic import HOSTS, STEPS, TOGETHER
from benchmarks.campaign.plan import Job
from benchmarks.campaign.values import contribution, difference, encode, total

PAUSE_S = 0.01  # between sums, where a training computes
COMMIT = 5  # sums


def main() -> int:
    host = HOSTS.index(os.environ["HOROVOD_HOSTNAME"])
    connection = Client(os.environ["CAMPAIGN_SOCKET"], "AF_UNIX")
    connection.send((host, os.getpid()))
    number, job = connection.recv()
    log = os.open(Path(os.environ["TMPDIR"]) / f"rank-{number}", os.O_WRONLY | os.O_CREAT, 0o600)
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    faulthandler.enable(2)
    os.environ["OMNIHVD_HOST_ID"] = f"host-{job.hosts[host]}"
    train(job, connection)
    return 0


def train(job: Job, connection: Any) -> None:
    """Reports ("result", number of the sum, verdict, text, when it began, seconds), and ("world",
    when, rank, size) after each of Horovod's restarts."""
    import horovod.torch as hvd
    import torch
    from horovod.common.exceptions import HorovodInternalError

    import omnihvd  # noqa: F401

    sums = job.sums[0]

    def one(step: int) -> str:
        s, seed, size = sums[step % len(sums)], job.seed * 1000 + step, hvd.size()
        given = encode(contribution(seed, hvd.rank(), size, s.count, s), s.dtype)
        x = torch.from_numpy(given)
        if s.in_place:
            hvd.allreduce_(x, op=hvd.Sum, name=f"sum {step}")
        else:
            x = hvd.allreduce(x, op=hvd.Sum, name=f"sum {step}")
        wrong = difference(x.numpy(), total(seed, size, s.count, s), s.dtype)
        return f"{s}: {wrong}" if wrong else ""

    @hvd.elastic.run
    def steps(state: Any) -> None:
        connection.send(("world", time.monotonic(), hvd.rank(), hvd.size()))
        while state.step < STEPS:
            while state.step % TOGETHER == 0 and hvd.size() < len(HOSTS):
                time.sleep(0.1)
                state.check_host_updates()  # all ranks get the same answer
            begun = time.monotonic()

            def report(verdict: str, text: str, begun: float = begun) -> None:
                took = time.monotonic() - begun
                connection.send(("result", state.step, verdict, text, begun, took))

            try:
                wrong = one(state.step)
                report("wrong" if wrong else "right", wrong)
                time.sleep(PAUSE_S)
                state.step += 1
                if state.step % COMMIT == 0:
                    state.commit()
            except HorovodInternalError as why:
                report("failed", str(why))
                raise

    hvd.init()
    steps(hvd.elastic.TorchState(step=0))
    connection.send(("done",))


if __name__ == "__main__":
    sys.exit(main())
