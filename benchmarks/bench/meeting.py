"""Out-of-band exchanges among a benchmark's ranks.

They go over a socket on which ranks sleep. In a collective of the measured library ranks would poll
for each other and, where ranks outnumber cores, disturb the samples.
"""

from __future__ import annotations

import random
import time
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

PATIENCE_S = 60.0  # until rank 0 listens
# A common start: seconds for all to hear of it, and the largest random delay after that.
SOON_S, SPREAD_S = 0.0005, 0.003


class Meeting:
    """The exchange among a job's ranks, at an address (host, port) of rank 0; needs the key."""

    def __init__(self, rank: int, size: int, address: tuple[str, int], key: bytes) -> None:
        self.rank, self.size = rank, size
        self._others: list[Connection] = [_connect(address, key)] if self.rank else []
        if self.rank == 0:
            with Listener(address, backlog=self.size, authkey=key) as listener:
                self._others = [listener.accept() for _ in range(self.size - 1)]

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, by rank. Collective; returns when all have come."""
        if self.rank:
            self._others[0].send((self.rank, value))
            values: list[Any] = self._others[0].recv()
            return values
        said = [(0, value), *(other.recv() for other in self._others)]
        values = [value for _, value in sorted(said, key=lambda pair: pair[0])]
        for other in self._others:
            other.send(values)
        return values

    def barrier(self) -> None:
        self.gather(None)

    def begin(self) -> float:
        """Sleeps until a common start of all ranks, and returns it, by time.monotonic(), a clock
        that they share on this machine. After a barrier ranks would go on one after another. The
        start is random, since a program's sums come at any phase of Horovod's cycle: a fixed delay
        after the last sum would suit some backends always, and others never."""
        said = self.gather((time.monotonic(), random.random()))
        moment: float = max(now for now, _ in said) + SOON_S + SPREAD_S * said[0][1]
        time.sleep(max(0.0, moment - time.monotonic()))
        return moment


def _connect(address: tuple[str, int], key: bytes) -> Connection:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return Client(address, authkey=key)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
