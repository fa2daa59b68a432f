"""Decides which sparse gradients omnihvd sums, and counts them."""

from __future__ import annotations

from omnihvd import engine
from omnihvd.compression import OmniReduce
from omnihvd.compression.codec import Codec
from omnihvd.compression.compressor import Compressor
from omnihvd.intercept import in_use


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
    """Whether the user asks for this path and omnihvd intercepts sums; if it does not, warns."""
    asked = isinstance(compression, (OmniReduce, Compressor, Codec)) or (
        isinstance(compression, type) and issubclass(compression, OmniReduce)
    )
    if not asked:
        return False
    in_use.warn_if_unused()
    return in_use.horovod_problem() is None
