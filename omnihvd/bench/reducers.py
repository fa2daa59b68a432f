"""The measured operations: one or several tensors, summed in place by one of the libraries.

Each is prepared once a point, restored before each sum, and reduced. It is restored in the same
memory, or in new memory each time, as gradients are after `zero_grad(set_to_none=True)`.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from omnihvd.bench.patterns import Point, row_width
from omnihvd.bench.published import (
    PARTS,
    Parallax,
    SparCml,
    SparCmlOfDense,
    SparCmlOfRows,
)

BUCKET = 25 * 2**20  # bytes; DDP's


class Gloo:
    """torch.distributed over Gloo: the ring allreduce that PyTorch uses on CPUs."""

    most_error = 0.0  # relative to the sum, of lossy ones

    def __init__(self) -> None:
        import torch
        import torch.distributed as dist

        self.torch, self.dist = torch, dist
        if "OMPI_COMM_WORLD_RANK" in os.environ:  # torchrun sets the others itself
            os.environ["RANK"] = os.environ["OMPI_COMM_WORLD_RANK"]
            os.environ["WORLD_SIZE"] = os.environ["OMPI_COMM_WORLD_SIZE"]
        dist.init_process_group("gloo")
        self.parts = int(os.environ.get(PARTS, "1"))

    def prepare(self, x: np.ndarray, point: Point) -> None:
        self.original = self.torch.from_numpy(x).tensor_split(point.tensors)
        self.keeps = point.memory == "kept"
        self.tensors: list[Any] = []  # to reduce

    def restore(self) -> None:
        if self.keeps and self.tensors:
            for tensor, original in zip(self.tensors, self.original):
                tensor.copy_(original)
        else:
            self.tensors = []  # free the old ones first
            self.tensors = [original.clone() for original in self.original]

    def reduce(self) -> None:
        """Reduces several tensors as DDP does: in buckets, several of them under way."""
        if len(self.tensors) == 1:
            parts = self.tensors[0].tensor_split(self.parts) if self.parts > 1 else self.tensors
            self._reduce_all(parts)
            return
        buckets: list[list[Any]] = [[]]
        for tensor in self.tensors:
            if sum(t.nbytes for t in buckets[-1]) + tensor.nbytes > BUCKET and buckets[-1]:
                buckets.append([])
            buckets[-1].append(tensor)
        flat = [self.torch.cat(bucket) for bucket in buckets]
        self._reduce_all(flat)
        for summed, bucket in zip(flat, buckets):
            for tensor, piece in zip(bucket, summed.split([t.numel() for t in bucket])):
                tensor.copy_(piece)

    def _reduce_all(self, tensors: Any) -> None:
        if len(tensors) == 1:
            self.dist.all_reduce(tensors[0])
            return
        for work in [self.dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
            work.wait()

    def result(self) -> np.ndarray:
        whole = self.tensors[0] if len(self.tensors) == 1 else self.torch.cat(self.tensors)
        return np.asarray(whole.numpy())

    def stats(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        self.dist.destroy_process_group()


class OmniGloo(Gloo):
    """The same with omnihvd under it."""

    def __init__(self) -> None:
        import omnihvd.torch

        self.omnihvd = omnihvd
        super().__init__()

    def stats(self) -> dict[str, Any]:
        return self.omnihvd.stats()


class Horovod(Gloo):
    """Horovod's allreduce, in place; it fuses several tensors."""

    def __init__(self) -> None:
        import horovod.torch as hvd
        import torch

        self.torch, self.hvd = torch, hvd
        hvd.init()

    def reduce(self) -> None:
        started = [
            self.hvd.allreduce_async_(tensor, op=self.hvd.Sum, name=f"bench.{i}")
            for i, tensor in enumerate(self.tensors)
        ]
        for handle in started:
            self.hvd.synchronize(handle)

    def close(self) -> None:
        self.hvd.shutdown()


class OmniHvd(Horovod):
    """The same with omnihvd under it."""

    def __init__(self) -> None:
        import omnihvd

        self.omnihvd = omnihvd
        super().__init__()

    def stats(self) -> dict[str, Any]:
        return self.omnihvd.stats()


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


class OmniGlooScatter(GlooScatter):
    """The same with omnihvd under it."""

    def __init__(self) -> None:
        import omnihvd.torch

        self.omnihvd = omnihvd
        super().__init__()

    def stats(self) -> dict[str, Any]:
        return self.omnihvd.stats()


class MpiScatter(GlooScatter, Mpi):
    """MPI's reduce-scatter."""

    __init__ = Mpi.__init__
    close = Mpi.close

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
        given = self.torch.from_numpy(x)
        width = row_width(x)
        self.dense = self.torch.zeros(-(-len(x) // width), width, dtype=given.dtype)
        self.dense.view(-1)[: len(x)] = given
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


BACKENDS: dict[str, Any] = {
    "omnihvd": OmniHvd,
    "omnihvd-dedicated": OmniHvd,
    "omnihvd-torch": OmniGloo,
    "omnihvd-natural": OmniNatural,
    "omnihvd-torch-natural": OmniGlooNatural,
    "gloo": Gloo,
    "horovod": Horovod,
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
}
DEDICATED = ("omnihvd-dedicated", "switchml")  # with aggregators on hosts of their own
PUBLISHED = (
    "sparcml",
    "sparcml-rows",
    "sparcml-of-dense",
    "parallax",
)  # in benchmarks/peers
SCATTERS = ("gloo-scatter", "mpi-scatter", "omnihvd-torch-scatter")  # compared separately
UNUSUAL = ("mpi", "mpich", "switchml", *PUBLISHED)  # no training uses these as they are
USUAL = [
    name for name, b in BACKENDS.items() if not b.most_error and name not in (*UNUSUAL, *SCATTERS)
]
