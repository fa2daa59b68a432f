"""Decides which sparse gradients omnihvd sums, and counts them."""

from __future__ import annotations

from typing import Any

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


def few_shared(union: Any, gathered: Any, ranks: Any) -> Any:
    """Whether ranks share so few rows that gathering their values moves less than a sum. union,
    gathered: rows of any rank and of all; numbers, or tensors of one.

    Each of N ranks sends (N-1)/N of its own rows and of the union for a sum; an allgather sends
    (N-1)/N of all ranks' rows. Two ranks always gather.
    """
    return ranks * union >= (ranks - 1) * gathered


def count_gathered(values_bytes: int) -> None:
    """Counts a gradient with few_shared() rows among the fallbacks; bytes: of the rows here."""
    engine.session.count_pass("rows", values_bytes)


def takes(compression: object) -> bool:
    """Whether the user asks for this path and omnihvd intercepts sums; if it does not, warns."""
    asked = isinstance(compression, (OmniReduce, Compressor, Codec)) or (
        isinstance(compression, type) and issubclass(compression, OmniReduce)
    )
    if not asked:
        return False
    in_use.warn_if_unused()
    return in_use.horovod_problem() is None
