"""The end of a process group, in one process."""

from __future__ import annotations

import threading
from datetime import timedelta

import torch
from torch.distributed import HashStore

from omnihvd.torch.sums import Sums

LIMIT = timedelta(seconds=30)


def test_a_group_ends_when_the_sum_of_who_waits_for_it_has_ended() -> None:
    """The sum is made in the caller's thread; close() may come from any other one."""
    order: list[str] = []
    under_way, may_end, someone_comes = (threading.Event() for _ in range(3))

    class Turn:
        def __init__(self, lock: threading.Lock) -> None:
            self._lock, self.release = lock, lock.release

        def acquire(self) -> None:
            if under_way.is_set():
                someone_comes.set()
            self._lock.acquire()

        def __enter__(self) -> None:
            self.acquire()

        def __exit__(self, *_: object) -> None:
            self.release()

    class Gloo:
        def close(self) -> None:
            order.append("closed")
            someone_comes.set()

    class OneSum(Sums):
        def _make(self, *_: object) -> str:
            under_way.set()
            assert may_end.wait(30)
            order.append("summed")
            return ""

    sums = OneSum(HashStore(), 0, 1)
    sums._gloo = Gloo()
    sums._turn = Turn(sums._turn)
    summing = threading.Thread(
        target=sums.allreduce, args=([torch.ones(1)], LIMIT), kwargs={"waits": True}
    )
    closing = threading.Thread(target=sums.close)
    summing.start()
    assert under_way.wait(30)
    closing.start()
    assert someone_comes.wait(30)
    may_end.set()
    summing.join(30)
    closing.join(30)
    sums.join()
    assert order == ["summed", "closed"]
