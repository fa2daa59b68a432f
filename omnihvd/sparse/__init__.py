"""Sparse gradients (embeddings) without allgathering their values.

Horovod sends a sparse gradient by allgather: every rank gets every other rank's rows, duplicates
and all, so memory and time grow with the number of ranks. With `compression=OmniReduce`, omnihvd
gathers the row numbers only, and sums the union of the rows, duplicates merged, as one dense
matrix: in it, a rank's missing rows are zero blocks, which cost nothing on the wire. The result is
the sparse gradient of the union, with ascending row numbers.
"""

from __future__ import annotations

from types import ModuleType

from omnihvd.frameworks.after_import import after_import


def install() -> None:
    """Teaches Horovod's frameworks, those imported already and those to come."""
    after_import("horovod.torch.optimizer", _torch)
    after_import("horovod.tensorflow", _tensorflow)


def _torch(module: ModuleType) -> None:
    from omnihvd.sparse import torch_rows

    torch_rows.install(module)


def _tensorflow(module: ModuleType) -> None:
    from omnihvd.sparse import tensorflow_rows

    tensorflow_rows.install(module)
