"""A rank of a job under a launcher: python -m benchmarks.campaign.launched_rank"""

from __future__ import annotations

import os
import sys
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.campaign import place
from benchmarks.campaign.library import MAKERS, Pipes
from benchmarks.campaign.plan import Job
from benchmarks.campaign.rank import Rank


class MpiSums:
    by_library = True  # perhaps

    def __init__(self, rank: int, size: int, pipes: Pipes) -> None:
        from mpi4py import MPI

        self.mpi, self.world = MPI, MPI.COMM_WORLD
        self.world.Set_errhandler(MPI.ERRORS_RETURN)
        assert (self.world.rank, self.world.size) == (rank, size)

    def allreduce(self, given: np.ndarray, out: np.ndarray, dtype: str) -> None:
        self.world.Allreduce(self.mpi.IN_PLACE if given is out else given, out)

    def reduce_scatter(self, given: np.ndarray, out: np.ndarray, dtype: str) -> None:
        self.world.Reduce_scatter(given, out, [len(out)] * self.world.size)

    def close(self) -> None:
        pass


class HorovodSums:
    by_library = True  # perhaps

    def __init__(self, rank: int, size: int, pipes: Pipes | None) -> None:
        import horovod.torch as hvd
        import torch

        import omnihvd  # noqa: F401

        self.hvd, self.torch, self.number = hvd, torch, 0
        hvd.init()
        assert (hvd.rank(), hvd.size()) == (rank, size)

    def allreduce(self, given: np.ndarray, out: np.ndarray, dtype: str) -> None:
        self.number += 1
        x, how = self.torch.from_numpy(given), {"op": self.hvd.Sum, "name": f"sum {self.number}"}
        if given is out:
            self.hvd.allreduce_(x, **how)
        else:
            out[:] = self.hvd.allreduce(x, **how).numpy()

    def reduce_scatter(self, given: np.ndarray, out: np.ndarray, dtype: str) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self.hvd.shutdown()


class Watching:
    """The connection to the job, which keeps whether a sum has failed."""

    failed = False

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    def send(self, said: Any) -> None:
        self.failed |= said[0] == "result" and said[2] != "right"
        self.connection.send(said)


def main() -> int:
    rank = int(os.environ.get("HOROVOD_RANK") or os.environ["OMPI_COMM_WORLD_RANK"])
    place.log_to(Path(os.environ["TMPDIR"]), rank)
    connection = Client(os.environ["CAMPAIGN_SOCKET"], "AF_UNIX")
    connection.send((rank, os.getpid()))
    job: Job = connection.recv()
    os.environ["OMNIHVD_HOST_ID"] = f"host-{job.hosts[rank]}"
    MAKERS.update(mpirun=MpiSums, horovodrun=HorovodSums)
    pipe: Any = Watching(connection)
    member = Rank(job, rank, pipe, -1)
    member.limit()
    member.sums(0, rank, job.size, job.sums[0], pipe, job.seed * 10, True)
    if pipe.failed:
        os._exit(1)  # MPI_Finalize would wait for ranks that have ended
    return 0


if __name__ == "__main__":
    sys.exit(main())
