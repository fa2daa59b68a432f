"""Sparse gradients (embeddings) without allgathering their values.

Horovod sends a sparse gradient by allgather: every rank gets every other rank's rows, duplicates
and all, so memory and time grow with the number of ranks. With `compression=OmniReduce`, omnihvd
gathers the row numbers only, and sums the union of the rows, duplicates merged, as one dense
matrix: in it, a rank's missing rows are zero blocks, which cost nothing on the wire. The result is
the sparse gradient of the union, with ascending row numbers.
"""

from __future__ import annotations

from types import ModuleType

from omnihvd import engine
from omnihvd.after_import import after_import


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


def count_rows(
    *, row_bytes: int, number_bytes: int, own: int, gathered: int, union: int, dense: int
) -> None:
    """Counts a gradient in omnihvd.stats()["sparse"]: rows here (each once), of all ranks, of any
    rank, and all there are; bytes of a row and of its number."""
    engine.session.count_rows(
        own_bytes=own * row_bytes,
        gathered_bytes=gathered * (row_bytes + number_bytes),
        union_bytes=union * row_bytes,
        dense_bytes=dense * row_bytes,
    )


def in_use(compression: object) -> bool:
    """Whether the user asks for this path and sums reach omnihvd; if they do not, says why."""
    from omnihvd import hooks  # which imports this module
    from omnihvd.compression import OmniReduce
    from omnihvd.compressors.compressor import Compressor

    if compression is not OmniReduce and not isinstance(compression, Compressor):
        return False
    hooks.warn_if_unused()
    return hooks.horovod_problem() is None
