"""OMNIHVD_COMPRESS_FIRST: does each rank compress, or each host after summing its ranks?"""

from __future__ import annotations

import functools

from omnihvd import engine


@functools.cache  # called for each tensor under a codec, and reads the whole environment
def hosts_sum_first() -> bool:
    first: str = engine.session.settings_from_environment().compress_first
    return first == "0"


def refuse_hosts_first(what: str, why: str) -> None:
    """For methods with one order only: raises ValueError where the other is set."""
    if hosts_sum_first():
        raise ValueError(f"OMNIHVD_COMPRESS_FIRST=0 is not for {what}: {why}")
