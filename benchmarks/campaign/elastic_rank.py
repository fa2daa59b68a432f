"""A process of an elastic job: python -m benchmarks.campaign.elastic_rank"""

from __future__ import annotations

import os
import sys
import time
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any

from benchmarks.campaign import place
from benchmarks.campaign.elastic import STEPS, TOGETHER
from benchmarks.campaign.launched_rank import HorovodSums
from benchmarks.campaign.plan import Job
from benchmarks.campaign.rank import Rank
from benchmarks.elastic_hosts import HOSTS

PAUSE_S = 0.01  # between sums, where a training computes
COMMIT = 5  # sums


def main() -> int:
    host = HOSTS.index(os.environ["HOROVOD_HOSTNAME"])
    connection = Client(os.environ["CAMPAIGN_SOCKET"], "AF_UNIX")
    connection.send((host, os.getpid()))
    number, job = connection.recv()
    place.log_to(Path(os.environ["TMPDIR"]), number)
    os.environ["OMNIHVD_HOST_ID"] = f"host-{job.hosts[host]}"
    train(job, number, connection)
    return 0


def train(job: Job, number: int, connection: Any) -> None:
    """Reports ("result", number of the sum, verdict, text, when it began, seconds), and ("world",
    when, rank, size) after each of Horovod's restarts."""
    from horovod.common.exceptions import HorovodInternalError

    made = HorovodSums(int(os.environ["HOROVOD_RANK"]), int(os.environ["HOROVOD_SIZE"]), None)
    hvd, sums, member = made.hvd, job.sums[0], Rank(job, number, connection, -1)

    def one(step: int) -> str:
        made.number = step  # ranks that come later have the same names
        s, seed = sums[step % len(sums)], job.seed * 1000 + step
        return member.sum(made, hvd.rank(), hvd.size(), s, seed)

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

    steps(hvd.elastic.TorchState(step=0))
    connection.send(("done",))


if __name__ == "__main__":
    sys.exit(main())
