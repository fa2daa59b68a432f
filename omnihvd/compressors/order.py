"""OMNIHVD_COMPRESS_FIRST: does each rank compress, or what the ranks of a host have summed?"""

from __future__ import annotations

import functools

from omnihvd import engine


@functools.cache  # each tensor under a codec asks, and the answer is read of the whole environment
def hosts_sum_first() -> bool:
    first: str = engine.session.settings_from_environment().compress_first
    return first == "0"


def refuse_hosts_first(what: str, why: str) -> None:
    """For what has one order only. Raises ValueError where the other is asked for."""
    if hosts_sum_first():
        raise ValueError(f"OMNIHVD_COMPRESS_FIRST=0 is not for {what}: {why}")
