"""The ranks' word that they have the same codec."""

from __future__ import annotations

from typing import Any

from torch.distributed import PrefixStore

from omnihvd import engine
from omnihvd.torch.gloo import gather_over


class Agreement:
    """Of the ranks that share `store`, which nobody else writes to."""

    def __init__(self, store: Any, rank: int, size: int) -> None:
        self._store, self._rank, self._size = store, rank, size
        self._agreed: set[str] = set()

    def agree_on(self, codec: str) -> None:
        """Collective, once for each text. RuntimeError if another rank has another one."""
        if codec in self._agreed:
            return
        come = gather_over(
            PrefixStore(f"codec {len(self._agreed)}", self._store),
            self._rank,
            self._size,
            engine.session.meeting_patience_s(),
            "the first allreduce under a codec",
            "it is late, has no codec there, or died",
        )
        for rank, other in enumerate(come(codec.encode())):
            if other != codec.encode():
                raise RuntimeError(f"rank {rank} has the codec {other.decode()}, this one {codec}")
        self._agreed.add(codec)
