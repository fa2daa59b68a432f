"""Sparse gradients (embeddings) without allgathering their values.

Horovod sends a sparse gradient by allgather: every rank gets every other rank's rows, duplicates
and all, so memory and time grow with the number of ranks. With `compression=OmniReduce`, omnihvd
gathers the row numbers only, and sums the union of the rows, duplicates merged, as one dense
matrix: in it, a rank's missing rows are zero blocks, which cost nothing on the wire. The result is
the sparse gradient of the union, with ascending row numbers.
"""

from __future__ import annotations

from types import ModuleType

from omnihvd import engine, in_use
from omnihvd.after_import import after_import
from omnihvd.compressors.compressor import Compressor
from omnihvd.lossless import Lossless


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


def takes(compression: object) -> bool:
    """Whether the user asks for this path and sums reach omnihvd; if they do not, says why."""
    asked = isinstance(compression, (Lossless, Compressor)) or (
        isinstance(compression, type) and issubclass(compression, Lossless)
    )
    if not asked:
        return False
    in_use.warn_if_unused()
    return in_use.horovod_problem() is None
