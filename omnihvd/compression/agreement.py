"""Checks before the first sum that all ranks compress alike: a sum would not show a difference."""

from __future__ import annotations

import os
from collections.abc import Iterable

from omnihvd.compression import order

BYTES = 512  # of a description


def wanted(ranks: int) -> bool:
    """False in elastic jobs: ranks may join when the others are past their first sum."""
    return ranks > 1 and os.environ.get("HOROVOD_ELASTIC") != "1"


def encode(compressor: object) -> bytes:
    """The compressor's own description, in BYTES bytes."""
    text = repr(compressor) + " after hosts have summed" * order.hosts_sum_first()
    return text.encode()[:BYTES].ljust(BYTES)


def check(described: Iterable[bytes]) -> None:
    """described: encode() of all ranks. RuntimeError, the same on all, if one is not rank 0's."""
    first, *others = (text.decode(errors="replace").strip() for text in described)
    for rank, other in enumerate(others, start=1):
        if other != first:
            raise RuntimeError(
                f"rank {rank} compresses with {other}, rank 0 with {first}: all ranks must be "
                "given the same compression"
            )
