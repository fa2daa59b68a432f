"""Collectives over a process set, for a rule's own sums, in TensorFlow."""

from __future__ import annotations

from typing import Any


class Ranks:
    """The ranks of a process set and their collectives. Tensors have names."""

    def __init__(self, hvd: Any, process_set: Any, op: Any) -> None:
        self._hvd, self._set = hvd, process_set
        self.averages = op == hvd.Average

    @property
    def size(self) -> int:
        return int(self._set.size())

    @property
    def rank(self) -> int:
        return int(self._set.rank())

    @property
    def scale(self) -> float:
        """The factor for a sum."""
        return 1 / self.size if self.averages else 1.0

    def average(self, tensor: Any, name: str) -> Any:
        return self.reduce(tensor, name, averages=True)

    def reduce(self, tensor: Any, name: str, averages: bool) -> Any:
        op = self._hvd.Average if averages else self._hvd.Sum
        return self._hvd.allreduce(tensor, op=op, name=name, process_set=self._set)

    def alltoall(self, tensor: Any, splits: Any, name: str) -> Any:
        both = self._hvd.alltoall(tensor, splits=splits, name=name, process_set=self._set)
        return both[0] if isinstance(both, (list, tuple)) else both

    def allgather(self, tensor: Any, name: str) -> Any:
        return self._hvd.allgather(tensor, name=name, process_set=self._set)

    def broadcast(self, tensor: Any, root: int, name: str) -> Any:
        return self._hvd.broadcast(tensor, root, name=name, process_set=self._set)
