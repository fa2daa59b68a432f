"""All measured operations: those of `omnihvd bench`, and more peers (omnihvd/bench/sums.py)."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.bench.published import Parallax, SparCml, SparCmlOfDense, SparCmlOfRows, as_rows
from omnihvd.bench import sums
from omnihvd.bench.patterns import Point, row_width
from omnihvd.bench.sums import Gloo, Horovod, OmniGloo, OmniHvd


class OmniNatural(OmniHvd):
    """The same under natural compression, as in a training script: not in place."""

    most_error = 0.6

    def reduce(self) -> None:
        (tensor,) = self.original
        codec = self.omnihvd.OmniReduce.natural()
        summed = self.hvd.allreduce(tensor, op=self.hvd.Sum, name="bench", compression=codec)
        self.tensors = [summed]

    def restore(self) -> None:
        pass


class OmniGlooNatural(OmniGloo):
    """The same under natural compression."""

    most_error = 0.6

    def reduce(self) -> None:
        from omnihvd.torch.process_group import take

        codec = self.omnihvd.OmniReduce.natural()
        work = take(self.dist.group.WORLD, self.tensors[0], codec=codec)
        assert work is not None
        work.wait()


class SwitchMl(OmniHvd):
    """SwitchML* of OmniReduce's paper: all blocks, zero or not, stream through the same dedicated
    aggregators (OMNIHVD_WAY=stream; points_of gives it a tensor without zeros).

    Words are float32, as many and as long as SwitchML's int32 (Sapio et al., NSDI 2021).
    """


class Mpi(Gloo):
    """MPI's allreduce, in place, without Horovod and so without a wait for Horovod's cycle."""

    parts = 1

    def __init__(self) -> None:
        import mpi4py
        import torch

        mpi4py.rc.threads = False
        from mpi4py import MPI

        self.torch, self.mpi = torch, MPI

    def _reduce_all(self, tensors: Any) -> None:
        for tensor in tensors:
            self.mpi.COMM_WORLD.Allreduce(self.mpi.IN_PLACE, tensor.numpy())

    def close(self) -> None:
        self.mpi.Finalize()


class GlooScatter(Gloo):
    """torch.distributed's reduce-scatter over Gloo, as FSDP does it, of one tensor. Gathering the
    shares for verification is not timed."""

    def prepare(self, x: np.ndarray, point: Point) -> None:
        self.count, ranks = len(x), self._ranks()
        padded = np.pad(x, (0, -len(x) % ranks))
        self.original = (self.torch.from_numpy(padded),)
        self.keeps = point.memory == "kept"
        self.tensors = []
        self.share = self.torch.empty(len(padded) // ranks, dtype=self.original[0].dtype)

    def reduce(self) -> None:
        self.dist.reduce_scatter_tensor(self.share, self.tensors[0])

    def result(self) -> np.ndarray:
        whole = self.torch.empty_like(self.original[0])
        self._gather(whole)
        return np.asarray(whole[: self.count].numpy())

    def _ranks(self) -> int:
        return int(self.dist.get_world_size())

    def _gather(self, whole: Any) -> None:
        self.dist.all_gather_into_tensor(whole, self.share)


class OmniGlooScatter(GlooScatter, OmniGloo):
    """The same with omnihvd under it."""


class MpiScatter(GlooScatter, Mpi):
    """MPI's reduce-scatter."""

    def reduce(self) -> None:
        given, share = self.tensors[0].numpy(), self.share.numpy()
        self.mpi.COMM_WORLD.Reduce_scatter_block(given, share)

    def _ranks(self) -> int:
        return int(self.mpi.COMM_WORLD.size)

    def _gather(self, whole: Any) -> None:
        self.mpi.COMM_WORLD.Allgather(self.share.numpy(), whole.numpy())


class AgSparse(Horovod):
    """Horovod's path for sparse gradients: allgather of indices and values.

    The tensor is sparse from the start, with rows of one block (single elements for the pattern of
    elements). The time excludes the sum of the gathered parts, although a user's optimizer has to
    make it. Both favour this backend.
    """

    def prepare(self, x: np.ndarray, point: Point) -> None:
        self.count = len(x)
        self.dense = self.torch.from_numpy(as_rows(x, row_width(x)))
        self.rows = self.dense.any(1).nonzero().t()
        self.values = self.dense[self.rows[0]]

    def restore(self) -> None:
        pass

    def reduce(self) -> None:
        sparse = self.torch.sparse_coo_tensor(self.rows, self.values, self.dense.shape)
        self.gathered = self.hvd.sparse_allreduce_async(sparse, name="bench", op=self.hvd.Sum)()

    def result(self) -> np.ndarray:
        return self.gathered.to_dense().flatten()[: self.count].numpy()


class AgSparseOfDense(AgSparse):
    """The same with omnihvd's input and output: a dense tensor, in place.

    Non-zero rows are found, gathered from all ranks, and added.
    """

    def prepare(self, x: np.ndarray, point: Point) -> None:
        super().prepare(x, point)
        self.tensor = self.dense.clone()

    def restore(self) -> None:
        self.tensor.copy_(self.dense)

    def reduce(self) -> None:
        rows = self.tensor.any(1).nonzero().flatten()
        parts = [
            self.hvd.allgather_async(rows, name="rows"),
            self.hvd.allgather_async(self.tensor[rows], name="values"),
        ]
        all_rows, all_values = (self.hvd.synchronize(part) for part in parts)
        self.tensor[rows] = 0
        self.tensor.index_add_(0, all_rows, all_values)

    def result(self) -> np.ndarray:
        return self.tensor.flatten()[: self.count].numpy()


class OmniRows(Mpi):
    """omnihvd's sum of lists of rows: it gets one, and gives one, as SparCML by rows does."""

    def __init__(self) -> None:
        import omnihvd

        super().__init__()
        self.omnihvd, world = omnihvd, self.mpi.COMM_WORLD
        self.ranks = omnihvd.engine.session.Communicator(world.rank, world.size)
        self.ranks.meet(world.allgather)

    def prepare(self, x: np.ndarray, point: Point) -> None:
        self.count = len(x)
        self.dense = as_rows(x, row_width(x))
        self.rows = np.flatnonzero(self.dense.any(1))
        self.values = self.dense[self.rows]

    def restore(self) -> None:
        pass

    def reduce(self) -> None:
        (count, length), every = self.values.shape, len(self.dense)
        at, rows_at = self.values.ctypes.data, self.rows.ctypes.data
        dtype, gather = str(self.values.dtype), self.mpi.COMM_WORLD.allgather
        union = self.ranks.sum_rows(at, rows_at, count, length, every, dtype, gather)
        self.summed = np.empty(union, np.int64), np.empty((union, length), dtype)
        self.ranks.take_rows(*(array.ctypes.data for array in self.summed))

    def result(self) -> np.ndarray:
        whole = np.zeros_like(self.dense)
        whole[self.summed[0]] = self.summed[1]
        return whole.reshape(-1)[: self.count]

    def stats(self) -> dict[str, Any]:
        return {**self.omnihvd.stats(), "ways": {}}

    def close(self) -> None:
        del self.ranks
        super().close()


class OmniTorchRows(AgSparse, OmniGloo):
    """dist.all_reduce of a sparse tensor of the same rows, under omnihvd."""

    __init__, close = OmniGloo.__init__, OmniGloo.close

    def reduce(self) -> None:
        self.gathered = self.torch.sparse_coo_tensor(
            self.rows, self.values, self.dense.shape, is_coalesced=True, check_invariants=False
        )
        self.dist.all_reduce(self.gathered)


BACKENDS: dict[str, Any] = {
    **sums.BACKENDS,
    "gloo-again": sums.Gloo,  # another job, which shows how far two jobs alike differ
    "omnihvd-dedicated": OmniHvd,
    "omnihvd-natural": OmniNatural,
    "omnihvd-torch-natural": OmniGlooNatural,
    "mpi": Mpi,
    "mpich": Mpi,
    "gloo-scatter": GlooScatter,
    "mpi-scatter": MpiScatter,
    "omnihvd-torch-scatter": OmniGlooScatter,
    "agsparse": AgSparse,
    "agsparse-of-dense": AgSparseOfDense,
    "switchml": SwitchMl,
    "sparcml": SparCml,
    "sparcml-rows": SparCmlOfRows,
    "sparcml-of-dense": SparCmlOfDense,
    "parallax": Parallax,
    "omnihvd-rows": OmniRows,
    "omnihvd-torch-rows": OmniTorchRows,
}
DEDICATED = ("omnihvd-dedicated", "switchml")  # with aggregators on hosts of their own
PUBLISHED = (
    "sparcml",
    "sparcml-rows",
    "sparcml-of-dense",
    "parallax",
)  # in benchmarks/peers
SCATTERS = ("gloo-scatter", "mpi-scatter", "omnihvd-torch-scatter")  # compared separately
OF_ROWS = ("omnihvd-rows", "omnihvd-torch-rows")  # get and give lists
# No training uses these as they are.
UNUSUAL = ("gloo-again", "mpi", "mpich", "switchml", *PUBLISHED, *OF_ROWS)
USUAL = [
    name for name, b in BACKENDS.items() if not b.most_error and name not in (*UNUSUAL, *SCATTERS)
]
