"""omnihvd's own Gloo among the ranks of a process group, for the parts of sums that Gloo makes.

The group's own Gloo belongs to the caller. Both are in use at the same time, from different
threads, and Gloo tells collectives apart by their order alone.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
from collections import deque
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import PrefixStore, ProcessGroupGloo, ReduceOp
from torch.distributed.distributed_c10d import (
    AllreduceOptions,
    BroadcastOptions,
    ReduceScatterOptions,
)

from omnihvd import engine
from omnihvd.torch.meetings import Meetings

MOST_DEVICES = 4  # each has a thread and a port
_numbers = itertools.count()


@functools.cache
def _devices(_number: int) -> list[Any]:
    """The devices that Gloo listens on. One for each group would cost 2 threads, 4 descriptors and
    20 ms at the group's end."""
    interfaces = list(filter(None, os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")))
    # Lazy connections, made at the first sum, would block the store's client.
    if not interfaces:
        return [ProcessGroupGloo.create_default_device(lazy_init=False)]
    return [ProcessGroupGloo.create_device(interface=i, lazy_init=False) for i in interfaces]


def forget_devices() -> None:
    """Frees the devices before the process ends, while Python can still run their threads."""
    _devices.cache_clear()


class Gloo:
    """Gloo's collectives, in place on host memory, for one thread at a time.

    The constructor is not collective: the first operation waits for all ranks and connects them.
    Each operation waits for `timeout` at most. RuntimeError when another rank has failed or does
    not come."""

    def __init__(self, meetings: Meetings, rank: int, size: int, timeout: timedelta) -> None:
        self._meetings, self._rank, self._size, self._timeout = meetings, rank, size, timeout
        self._gloo: Any = None
        self._begun = self._met = False  # ever, and in this sum
        # Gloo's two threads release tensors late. Dropping the last reference takes Python's lock,
        # and they must not do that while they are ended.
        self._recent: deque[Any] = deque(maxlen=2)
        self._exchanges = itertools.count()

    def begin_sum(self) -> None:
        """Another sum begins: the ranks may come to it at different times."""
        self._met = False

    def _connected(self) -> Any:
        if self._gloo is not None:
            return self._gloo
        if not self._begun:
            self.allgather(b"")
        # It has two threads. One alone would do, but takes up to 4 ms more on one core.
        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._devices = _devices(next(_numbers) % MOST_DEVICES)
        options._timeout = self._timeout
        store = PrefixStore("omnihvd/gloo", self._meetings.store)
        self._gloo = ProcessGroupGloo(store, self._rank, self._size, options)
        return self._gloo

    def close(self) -> None:
        self._gloo = None
        self._recent.clear()

    def set_timeout(self, timeout: timedelta) -> None:
        """Sets the time-out of later operations."""
        self._timeout = timeout
        if self._gloo is not None:
            self._gloo._set_default_timeout(timeout)

    def sum(self, data: memoryview, dtype: str) -> None:
        self.sum_tensor(torch.frombuffer(data, dtype=getattr(torch, dtype)))

    def scatter(self, given: memoryview, share: memoryview, dtype: str) -> None:
        """Reduce-scatter. share: gets this rank's share, of equal size on all ranks."""
        kind = getattr(torch, dtype)
        self._wait_for(
            "_reduce_scatter_base",
            torch.frombuffer(share, dtype=kind),
            torch.frombuffer(given, dtype=kind),
            ReduceScatterOptions(),
        )

    def sum_tensor(self, tensor: torch.Tensor) -> None:
        self._reduce(tensor, ReduceOp.SUM)

    def unite(self, bits: memoryview) -> None:
        self._reduce(torch.frombuffer(bits, dtype=torch.uint8), ReduceOp.BOR)

    def tell(self, data: memoryview) -> None:
        options = BroadcastOptions()
        options.rootRank = 0
        self._wait_for("broadcast", [torch.frombuffer(data, dtype=torch.uint8)], options)

    def allgather(self, mine: bytes) -> list[bytes]:
        """Every rank's bytes. A group needs a few such exchanges to connect; over the store they
        take less time than Gloo needs to connect and to wake its threads. RuntimeError names the
        ranks that do not come."""
        name, where = "begun", "the first allreduce of a process group"
        if self._begun:
            name = f"exchange {next(self._exchanges)}"
            where = "the allreduce in which all are connected"
        limit_s, warning_s = self._timeout.total_seconds(), 0.0
        if self._met:
            limit_s = min(limit_s or math.inf, engine.session.meeting_limits_s()[1])
        else:  # a rank may be as late as for any sum
            warning_s = engine.session.settings_from_environment().stall_warning_s
        self._begun = self._met = True
        why = "it is late, does something else, or died"
        return self._meetings.gather(name, mine, limit_s, where, why, warning_s)

    def gather(self, mine: torch.Tensor) -> list[torch.Tensor]:
        """Every rank's tensor, of one dimension and any length."""
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self._size)]
        self._wait_for("allgather", [lengths], [torch.tensor([len(mine)])])
        longest = max(int(length) for length in lengths)
        if longest == 0:
            return [mine] * self._size
        padded = mine.new_zeros(longest)
        padded[: len(mine)] = mine
        all_padded = [torch.empty_like(padded) for _ in range(self._size)]
        self._wait_for("allgather", [all_padded], [padded])
        return [theirs[: int(length)] for theirs, length in zip(all_padded, lengths)]

    def _reduce(self, tensor: torch.Tensor, op: Any) -> None:
        options = AllreduceOptions()
        options.reduceOp = op
        self._wait_for("allreduce", [tensor], options)

    def _wait_for(self, operation: str, *arguments: Any) -> None:
        self._recent.append(arguments)
        getattr(self._connected(), operation)(*arguments).wait()
