"""Bootstrap exchanges among the ranks of a process group, over its store."""

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
    """A view of a store that never blocks other threads while one waits.

    All threads of a process share one client of PyTorch's TCPStore. While one thread is in that
    client's wait() or get(), the set() of another thread is not sent. This can deadlock: another
    rank may need that set() before it sets the key that the first thread waits for.
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
        """The values of keys that exist."""
        if self._store.has_extended_api():
            return [bytes(value) for value in self._store.multi_get(keys)]
        return [bytes(self._store.get(key)) for key in keys]

    def check(self, keys: Sequence[str]) -> bool:
        return bool(self._store.check(keys))

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Waits for the keys. TimeoutError when one is not set in time."""
        limit_s = (self._store.timeout if timeout is None else timeout).total_seconds()
        begun = time.monotonic()
        while not self.check(keys):
            waited = time.monotonic() - begun
            if waited >= limit_s:
                raise TimeoutError(f"waited {limit_s:.0f} s for {', '.join(keys)}")
            time.sleep(min(max(waited / 8, 2e-4), 0.05, limit_s - waited))


class Meetings:
    """Exchanges among the ranks that share `store`; nobody else may write to it. Each exchange has
    a name of its own. All are collective."""

    def __init__(self, store: Any, rank: int, size: int) -> None:
        self.store = PollingStore(store)
        self._rank, self._size = rank, size
        self._codecs: set[str] = set()
        self.backend_failure = ""  # why the group's own backend has failed; empty: it has not

    def gather(
        self, name: str, mine: bytes, limit_s: float, where: str, why: str, warning_s: float = 0
    ) -> list[bytes]:
        """Every rank's bytes. After limit_s seconds (0: never) RuntimeError names the missing
        ranks, the exchange (where) and likely reasons (why). After warning_s (0: never) a warning
        says the same. If the group's backend has failed, a rank is likely dead, and waiting for it
        is in vain: RuntimeError at once."""
        if self.backend_failure:
            raise RuntimeError(
                "an earlier collective of this process group has failed in Gloo "
                f"({self.backend_failure}): make another group of the ranks that live"
            )
        self.store.set(self._key(name, self._rank), mine)
        keys = [self._key(name, rank) for rank in range(self._size)]
        limit_s = limit_s or FOR_EVER_S
        quiet_s = warning_s if 0 < warning_s < limit_s else 0
        come = quiet_s > 0 and self._all_come(keys, quiet_s)
        if quiet_s and not come:
            logger.warning("%s", self._missing(name, quiet_s, where, why))
        if not come and not self._all_come(keys, limit_s - quiet_s):
            raise self._missing(name, limit_s, where, why)
        return self.store.get_all(keys)

    def _all_come(self, keys: list[str], seconds: float) -> bool:
        try:
            self.store.wait(keys, timedelta(seconds=seconds))
        except TimeoutError:
            return False
        return True

    def agree_on(self, codec: str, limit_s: float) -> None:
        """Checks, once for each codec, that all ranks use it. RuntimeError if one does not, or does
        not come within limit_s seconds (0: never)."""
        if codec in self._codecs:
            return
        everyone = self.gather(
            f"codec {len(self._codecs)}",
            codec.encode(),
            limit_s,
            "the first allreduce under a codec",
            "it is late, has no codec there, or died",
            engine.session.settings_from_environment().stall_warning_s,
        )
        for rank, other in enumerate(everyone):
            if other != codec.encode():
                raise RuntimeError(
                    f"rank {rank} has the codec {other.decode()}, this one {codec}: give all ranks "
                    "the same"
                )
        self._codecs.add(codec)

    def _missing(self, name: str, waited_s: float, where: str, why: str) -> RuntimeError:
        who = ""
        with contextlib.suppress(RuntimeError):  # the store may have ended
            ranks = range(self._size)
            late = [rank for rank in ranks if not self.store.check([self._key(name, rank)])]
            who = ", ".join(f"rank {rank}" for rank in late)
        return RuntimeError(
            f"{who or 'a rank'} of {self._size} did not come to {where} within {waited_s:.0f} s: "
            f"{why}; its own output says which"
        )

    @staticmethod
    def _key(name: str, rank: int) -> str:
        return f"{name}/{rank}"
