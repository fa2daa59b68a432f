"""A library of collectives over pipes to the job's process, as an original library would be."""

from __future__ import annotations

import os
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from benchmarks.campaign.values import decode, encode

PATIENCE_S = 20.0
GLOO_S = 8.0  # the time-out of a process group


class LibraryError(Exception):
    """The library's own: it names nobody."""


class Pipes:
    """Collectives of one group."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.rank = 0  # in the group; scatter() needs it

    def allgather(self, mine: bytes) -> list[bytes]:
        self.connection.send(("gather", bytes(mine)))
        if not self.connection.poll(PATIENCE_S):
            raise LibraryError("library: nobody answers")
        said = self.connection.recv()
        if isinstance(said, str):
            raise LibraryError(f"library: {said}")
        return said  # type: ignore[no-any-return]

    def sum(self, view: memoryview, dtype: str) -> None:
        self._reduce(view, dtype, None)

    def scatter(self, given: memoryview, share: memoryview, dtype: str) -> None:
        self._reduce(given, dtype, share)

    def unite(self, view: memoryview) -> None:
        parts = [np.frombuffer(part, np.uint8) for part in self.allgather(view.tobytes())]
        view.cast("B")[:] = np.bitwise_or.reduce(parts).tobytes()  # type: ignore[index]

    def tell(self, view: memoryview) -> None:
        view.cast("B")[:] = self.allgather(view.tobytes())[0]

    def _reduce(self, view: memoryview, dtype: str, share: memoryview | None) -> None:
        kind = "uint16" if dtype == "bfloat16" else dtype
        parts = [np.frombuffer(part, kind) for part in self.allgather(view.tobytes())]
        total = encode(np.sum([decode(part, dtype) for part in parts], axis=0), dtype)
        if share is None:
            view.cast("B")[:] = total.astype(kind).tobytes()
        else:
            begin = self.rank * len(share) // np.dtype(kind).itemsize
            own = total.astype(kind)[begin : begin + len(share) // np.dtype(kind).itemsize]
            share.cast("B")[:] = own.tobytes()


class EngineSums:
    def __init__(self, rank: int, size: int, pipes: Pipes) -> None:
        from omnihvd.engine import session

        self.engine = session.Engine(session.settings_from_environment())
        self.group = self.engine.join(rank, size, pipes.allgather)
        self.size = size

    def allreduce(self, given: np.ndarray, out: np.ndarray, dtype: str) -> None:
        self.group.allreduce(given, out, dtype)

    def reduce_scatter(self, given: np.ndarray, out: np.ndarray, dtype: str) -> None:
        self.group.reduce_scatter(given, out, [len(out)] * self.size, dtype)

    def close(self) -> None:
        del self.group, self.engine


class CommunicatorSums:
    by_library = False  # whether the library made the last sum

    def __init__(self, rank: int, size: int, pipes: Pipes) -> None:
        from omnihvd.engine import session

        self.communicator = session.Communicator(rank, size)
        self.pipes = pipes
        pipes.rank = rank
        self.communicator.meet(pipes.allgather)

    def allreduce(self, given: np.ndarray, out: np.ndarray, dtype: str) -> None:
        from omnihvd.engine import session

        if given is not out:
            out[:] = given
        number = session.dtypes.index(dtype)
        if not self.communicator.sum_small(out.ctypes.data, len(out), number):
            self.by_library = bool(self.communicator.refusal(out.nbytes)) or not len(out)
            if self.by_library:
                self.pipes.sum(memoryview(out).cast("B"), dtype)
            else:
                self.communicator.sum(out.ctypes.data, len(out), dtype, self.pipes)

    def reduce_scatter(self, given: np.ndarray, out: np.ndarray, dtype: str) -> None:
        self.by_library = bool(self.communicator.refusal(given.nbytes, scatters=True))
        if self.by_library:
            self.pipes.scatter(memoryview(given).cast("B"), memoryview(out).cast("B"), dtype)
            return
        self.communicator.reduce_scatter(
            given.ctypes.data, out.ctypes.data, len(out), dtype, self.pipes
        )

    def close(self) -> None:
        del self.communicator


class TorchSums:
    """torch.distributed's process group of omnihvd, over Gloo."""

    made = 0  # by this process
    by_library = True  # perhaps

    def __init__(self, rank: int, size: int, pipes: Pipes) -> None:
        from datetime import timedelta

        import torch
        import torch.distributed as dist

        import omnihvd.torch  # noqa: F401

        self.torch, self.dist = torch, dist
        port, limit = int(os.environ["CAMPAIGN_STORE"]), timedelta(seconds=PATIENCE_S)
        TorchSums.made += 1
        store: Any = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=limit)
        store = dist.PrefixStore(f"group {TorchSums.made}", store)
        dist.init_process_group(
            "omnihvd", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=GLOO_S)
        )

    def _tensor(self, array: np.ndarray, dtype: str) -> Any:
        tensor = self.torch.from_numpy(array)
        return tensor.view(self.torch.bfloat16) if dtype == "bfloat16" else tensor

    def allreduce(self, given: np.ndarray, out: np.ndarray, dtype: str) -> None:
        if given is not out:
            out[:] = given
        self.dist.all_reduce(self._tensor(out, dtype))

    def reduce_scatter(self, given: np.ndarray, out: np.ndarray, dtype: str) -> None:
        self.dist.reduce_scatter_tensor(self._tensor(out, dtype), self._tensor(given, dtype))

    def close(self) -> None:
        self.dist.destroy_process_group()


MAKERS = {"engine": EngineSums, "communicator": CommunicatorSums, "torch": TorchSums}
