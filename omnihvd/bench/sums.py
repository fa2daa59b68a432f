"""The sums that `omnihvd bench` times: one or several tensors, summed in place by a library.

Each is prepared once a point, restored before each sum, and reduced. It is restored in the same
memory, or in new memory each time, as gradients are after `zero_grad(set_to_none=True)`.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from omnihvd.bench.patterns import Point
from omnihvd.bench.settings import PARTS

BUCKET = 25 * 2**20  # bytes; DDP's


class Gloo:
    """torch.distributed over Gloo: the ring allreduce that PyTorch uses on CPUs."""

    most_error = 0.0  # relative to the sum, of lossy ones
    omnihvd: Any = None  # the module, where it makes the sums

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
        return self.omnihvd.stats() if self.omnihvd else {}

    def close(self) -> None:
        self.dist.destroy_process_group()


class OmniGloo(Gloo):
    """The same with omnihvd under it."""

    def __init__(self) -> None:
        import omnihvd.torch

        self.omnihvd = omnihvd
        super().__init__()


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


BACKENDS: dict[str, Any] = {
    "gloo": Gloo,
    "omnihvd-torch": OmniGloo,
    "horovod": Horovod,
    "omnihvd": OmniHvd,
}
