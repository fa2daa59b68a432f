"""What the ranks of a process group tell each other over its store."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

from omnihvd import engine


class Meetings:
    """Those of the ranks that share `store`, which nobody else writes to; each has a name of its
    own. All is collective."""

    def __init__(self, store: Any, rank: int, size: int) -> None:
        self._store, self._rank, self._size = store, rank, size
        self._codecs: set[str] = set()

    def gather(
        self, name: str, mine: bytes, patience_s: float, where: str, why: str
    ) -> list[bytes]:
        """Every rank's bytes. RuntimeError names a rank that has not come after patience_s (0:
        none), to where, and why that may be."""
        keys = [f"{name}/{rank}" for rank in range(self._size)]
        self._store.set(keys[self._rank], mine)
        try:
            self._store.wait(keys, timedelta(seconds=math.ceil(patience_s or 1e9)))
        except Exception as error:
            missing = next((i for i, key in enumerate(keys) if not self._store.check([key])), None)
            if missing is None:
                raise
            raise RuntimeError(
                f"rank {missing} of {self._size} did not come to {where} within {patience_s:.0f} "
                f"s: {why}; its own output says which"
            ) from error
        return [self._store.get(key) for key in keys]

    def agree_on(self, codec: str) -> None:
        """Once for each text. RuntimeError if another rank has another one."""
        if codec in self._codecs:
            return
        everyone = self.gather(
            f"codec {len(self._codecs)}",
            codec.encode(),
            engine.session.meeting_patience_s(),
            "the first allreduce under a codec",
            "it is late, has no codec there, or died",
        )
        for rank, other in enumerate(everyone):
            if other != codec.encode():
                raise RuntimeError(f"rank {rank} has the codec {other.decode()}, this one {codec}")
        self._codecs.add(codec)
