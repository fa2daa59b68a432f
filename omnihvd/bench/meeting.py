"""How a benchmark's ranks agree, beside what they measure.

Over a socket in which they sleep. Were it a collective of the library that is measured, ranks would
poll for each other in it, and where they are more than cores, between any two samples.
"""

from __future__ import annotations

import random
import time
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

PATIENCE_S = 60.0  # until rank 0 listens
# A beginning: time in which all can hear of it, and how much later it is at most.
SOON_S, SPREAD_S = 0.0005, 0.003


class Meeting:
    """Of all ranks of a job, at an address (host, port) of rank 0's, for those who know the key."""

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
        """Sleeps until a moment that is the same for all ranks, and returns it, of
        time.monotonic(), a clock that they share on this machine. After a barrier they would go on
        one after another. A random one, as a program's sums come at any phase of Horovod's cycle:
        at a fixed time after the last, some backends would catch it always, and others never."""
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
