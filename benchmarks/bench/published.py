"""Peers of OmniReduce's paper (Fei et al., SIGCOMM 2021, section 6): SparCML and Parallax.

Both are implemented from their papers, in C++ over MPI's point-to-point messages, and built when
needed (benchmarks/peers). They get tensors as lists, so they need not search for non-zeros, and
sums stay lists where those are shorter. Both favour the peers.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.bench.lab_processes import LabError, search_path
from omnihvd.bench.patterns import Point, row_width
from omnihvd.bench.settings import PARTS

SOURCES = Path(__file__).parents[2] / "benchmarks" / "peers"
FLAGS = "-std=c++17 -O3 -march=native -fPIC -shared -Wall -Wextra -Werror -DOMPI_SKIP_MPICXX"
LIBRARY = "BENCH_PEERS"  # in the environment: where it was built
ALGORITHM = "BENCH_ALGORITHM"  # the same
RING = "ring"


def environment() -> dict[str, str]:
    """The environment of these peers' ranks. Builds the library that they call."""
    return {LIBRARY: str(_built())}


@functools.cache
def _built() -> Path:
    sources = sorted(SOURCES.glob("*.cc"))
    compiler = shutil.which("mpicxx", path=search_path())
    if not sources or not compiler:
        raise LabError(
            "the backends sparcml, sparcml-rows and parallax need a checkout of omnihvd, which has "
            f"them in benchmarks/peers, and Open MPI's mpicxx; found: {SOURCES if sources else ''} "
            f"{compiler or ''}"
        )
    content = b"".join(path.read_bytes() for path in sorted(SOURCES.iterdir())) + FLAGS.encode()
    digest = hashlib.sha256(content).hexdigest()[:16]
    library = SOURCES.parents[1] / "build" / "peers" / f"libpeers-{digest}.so"
    if not library.exists():
        library.parent.mkdir(parents=True, exist_ok=True)
        new = library.with_suffix(f".{os.getpid()}")
        subprocess.run([compiler, *FLAGS.split(), *map(str, sources), "-o", str(new)], check=True)
        new.rename(library)
    return library


def as_rows(x: np.ndarray, width: int) -> np.ndarray:
    """x as rows of this width; zeros fill the last one."""
    return np.pad(x, (0, -len(x) % width)).reshape(-1, width)


def as_list(x: np.ndarray, width: int) -> tuple[np.ndarray | None, np.ndarray]:
    """Numbers (uint32) and values (rows x width) of the non-zero rows; or None and all rows, where
    that is shorter."""
    padded = as_rows(x, width)
    numbers = np.flatnonzero(padded.any(1) if width > 1 else padded).astype(np.uint32)
    if len(numbers) * (1 + width) >= padded.size:
        return None, padded
    return numbers, np.ascontiguousarray(padded[numbers])


class SparCml:
    """SparCML (Renggli et al., SC 2019): streams of elements with their indices, 32 bits each. A
    stream becomes dense where that is shorter. Its algorithms are settings; low precision is left
    out."""

    most_error = 0.0

    def __init__(self) -> None:
        import mpi4py

        mpi4py.rc.threads = False
        from mpi4py import MPI

        self.mpi = MPI
        self.algorithm = os.environ[ALGORITHM]
        self.parts = int(os.environ.get(PARTS, "1"))
        self.library = ctypes.CDLL(os.environ[LIBRARY])
        self.library.peers_new.restype = ctypes.c_void_p
        self.library.peers_bytes_sent.restype = ctypes.c_int64
        self.peer: ctypes.c_void_p | None = None
        self.sent = 0

    def prepare(self, x: np.ndarray, point: Point) -> None:
        if x.dtype != np.float32:
            raise ValueError(f"SparCML's and Parallax's sums here are of float32, not {x.dtype}")
        self._free()
        self.count, width = len(x), self._width(x)
        self.numbers, self.values = as_list(x, width)
        rows = ctypes.c_uint32(-(-len(x) // width))
        new = self.library.peers_new(rows, ctypes.c_uint32(width), ctypes.c_int(self.parts))
        self.peer = ctypes.c_void_p(new)
        self.padded = rows.value * width

    def _width(self, x: np.ndarray) -> int:
        return 1

    def restore(self) -> None:
        """Does nothing: SparCML does not overwrite its input."""

    def reduce(self) -> None:
        numbers = None if self.numbers is None else self.numbers.ctypes.data_as(ctypes.c_void_p)
        rows = ctypes.c_uint64(len(self.values))
        mine = (self.peer, rows, numbers, self.values.ctypes.data_as(ctypes.c_void_p))
        if self.algorithm == "recursive":
            self.library.peers_double(*mine)
        else:
            self.library.peers_split(*mine, ctypes.c_int(self.algorithm == "dense"))
        self.sent += self.library.peers_bytes_sent(self.peer)

    def result(self) -> np.ndarray:
        tensor = np.zeros(self.padded, np.float32)
        self.library.peers_put(self.peer, tensor.ctypes.data_as(ctypes.c_void_p))
        return tensor[: self.count]

    def stats(self) -> dict[str, Any]:
        return {"bytes_sent": self.sent}

    def _free(self) -> None:
        if self.peer is not None:
            self.library.peers_free(self.peer)
        self.peer = None

    def close(self) -> None:
        self._free()
        self.mpi.Finalize()


class SparCmlOfRows(SparCml):
    """The same with one index for each row of elements. It is not in the paper, and favours SparCML
    where non-zero elements lie together."""

    def _width(self, x: np.ndarray) -> int:
        return row_width(x)


class SparCmlOfDense(SparCmlOfRows):
    """The same with omnihvd's input and output, a dense tensor in place: it finds the non-zero rows
    and overwrites them with the sum's."""

    def prepare(self, x: np.ndarray, point: Point) -> None:
        super().prepare(x, point)
        self.original = np.pad(x, (0, self.padded - self.count))
        self.tensor = self.original.copy()

    def restore(self) -> None:
        np.copyto(self.tensor, self.original)

    def reduce(self) -> None:
        doubling = ctypes.c_int(self.algorithm == "recursive")
        self.library.peers_sum(self.peer, self.tensor.ctypes.data_as(ctypes.c_void_p), doubling)
        self.sent += self.library.peers_bytes_sent(self.peer)

    def result(self) -> np.ndarray:
        return self.tensor[: self.count]


class Parallax(SparCmlOfRows):
    """Parallax (Kim et al., EuroSys 2019): ranks send a sparse variable's rows to servers, one on
    each host, and get back the sums of all rows that any rank had. A dense variable goes to MPI's
    allreduce. The kind of variable and the number of a server's partitions are settings, as
    Parallax tries them."""

    def prepare(self, x: np.ndarray, point: Point) -> None:
        super().prepare(x, point)
        self.dense = x.copy() if self.algorithm == RING else None
        self.original = x

    def restore(self) -> None:
        if self.dense is not None:
            np.copyto(self.dense, self.original)

    def reduce(self) -> None:
        if self.dense is None:
            super().reduce()
            return
        world = self.mpi.COMM_WORLD
        world.Allreduce(self.mpi.IN_PLACE, self.dense)
        self.sent += 2 * (world.size - 1) * self.dense.nbytes // world.size

    def result(self) -> np.ndarray:
        return super().result() if self.dense is None else self.dense
