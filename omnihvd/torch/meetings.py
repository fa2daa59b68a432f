"""What the ranks of a process group tell each other over its store."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from torch.distributed import Store

from omnihvd import engine
from omnihvd.log import logger

FOR_EVER_S = 1e9


class PollingStore(Store):
    """The same store, in which a thread that waits keeps no other thread waiting.

    All threads of a process share one client of PyTorch's TCPStore. While a thread is in that
    client's wait() or get(), the set() of another thread is not sent; and that set() may be what
    another rank waits for before it does what the first thread waits for.
    """

    def __init__(self, store: Any) -> None:
        super().__init__()
        self._store = store

    def set(self, key: str, value: Any) -> None:
        self._store.set(key, value)

    def get(self, key: str) -> bytes:
        self.wait([key], self._store.timeout)
        return bytes(self._store.get(key))

    def get_all(self, keys: Sequence[str]) -> list[bytes]:
        """Of keys that are there."""
        if self._store.has_extended_api():
            return [bytes(value) for value in self._store.multi_get(keys)]
        return [bytes(self._store.get(key)) for key in keys]

    def check(self, keys: Sequence[str]) -> bool:
        return bool(self._store.check(keys))

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """TimeoutError when a key is not there in time."""
        limit_s = (self._store.timeout if timeout is None else timeout).total_seconds()
        begun = time.monotonic()
        while not self.check(keys):
            waited = time.monotonic() - begun
            if waited >= limit_s:
                raise TimeoutError(f"waited {limit_s:.0f} s for {', '.join(keys)}")
            time.sleep(min(max(waited / 8, 2e-4), 0.05, limit_s - waited))


class Meetings:
    """Those of the ranks that share `store`, which nobody else writes to; each has a name of its
    own. All is collective."""

    def __init__(self, store: Any, rank: int, size: int) -> None:
        self.store = PollingStore(store)
        self._rank, self._size = rank, size
        self._codecs: set[str] = set()

    def gather(
        self, name: str, mine: bytes, limit_s: float, where: str, why: str, warning_s: float = 0
    ) -> list[bytes]:
        """Every rank's bytes. RuntimeError names the ranks that have not come after limit_s (0:
        none), to where, and why that may be. A warning does after warning_s (0: never)."""
        self.store.set(self._key(name, self._rank), mine)
        keys = [self._key(name, rank) for rank in range(self._size)]
        limit_s = limit_s or FOR_EVER_S
        first_s = warning_s if 0 < warning_s < limit_s else limit_s
        try:
            self.store.wait(keys, timedelta(seconds=first_s))
        except TimeoutError as error:
            if first_s == limit_s:
                raise self._missing(name, limit_s, where, why) from error
            logger.warning("%s", self._missing(name, first_s, where, why))
            try:
                self.store.wait(keys, timedelta(seconds=limit_s - first_s))
            except TimeoutError:
                raise self._missing(name, limit_s, where, why) from error
        return self.store.get_all(keys)

    def arrive(self, name: str) -> None:
        """Tells the others, and waits for nobody."""
        self.store.set(self._key(name, self._rank), b"")

    def missing(self, name: str) -> str:
        """The ranks that have not told: "rank 1, rank 3"; empty, too, if the store has ended."""
        ranks = range(self._size)
        with contextlib.suppress(RuntimeError):
            late = [rank for rank in ranks if not self.store.check([self._key(name, rank)])]
            return ", ".join(f"rank {rank}" for rank in late)
        return ""

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

    def _missing(self, name: str, waited_s: float, where: str, why: str) -> RuntimeError:
        who = self.missing(name) or "a rank"
        return RuntimeError(
            f"{who} of {self._size} did not come to {where} within {waited_s:.0f} s: {why}; its "
            "own output says which"
        )

    @staticmethod
    def _key(name: str, rank: int) -> str:
        return f"{name}/{rank}"
