"""Objects with the interface of GRACE: Xu et al., "GRACE: a compressed communication framework for
distributed machine learning" (ICDCS 2021).

    compressor.compress(tensor, name) -> (tensors, ctx)      compressor.decompress(tensors, ctx)
    compressor.aggregate(tensors)                            compressor.average
    memory.compensate(tensor, name)
    memory.update(tensor, name, compressor, tensors, ctx)

torch_grace.py and tensorflow_grace.py make GRACE's communicators from Horovod's calls:

    allreduce   sums the compressed tensors, and decompresses the sum once
    allgather   each rank gets all ranks' compressed tensors, decompresses and aggregates them
    broadcast   the same result, and so the same as allgather here

In addition "sum": each rank decompresses its own tensors, and those are summed. Where aggregate()
is a plain sum, the result is allgather's. It takes fewer bytes where the tensors are sparse, and
does not depend on `tensors_size_are_same`.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, Callable

from omnihvd.compression.rules import Rule

COMMUNICATORS = ("sum", "allreduce", "allgather", "broadcast")


@dataclass(frozen=True)
class GraceObjects(Rule):
    factory = "grace"
    error_feedback = None
    compressor: Any
    memory_object: Any
    communicator: str

    @property
    def replaces(self) -> bool:  # type: ignore[override]
        return self.communicator == "sum"

    @property
    def sums(self) -> str:  # type: ignore[override]
        return "" if self.replaces else "grace"

    @property
    def averages(self) -> bool:
        return bool(getattr(self.compressor, "average", True))

    def arguments(self) -> list[tuple[str, str]]:
        return [
            ("compressor", _described(self.compressor)),
            ("memory", _described(self.memory_object)),
            ("communicator", repr(self.communicator)),
        ]

    def check_use(self, averages: bool, grouped: bool) -> None:
        if not averages:
            raise ValueError(
                "an object of GRACE's interface averages by itself: set op=hvd.Average"
            )
        if grouped and self.sums:
            raise ValueError(f"grace by {self.communicator} needs groups=None")

    def compressed(
        self, gradient: Any, name: str, memory: dict[str, Any] | None = None
    ) -> tuple[list[Any], Any, dict[str, Any]]:
        """Returns compress()'s result and the objects' new memory. memory: their memory before;
        None: leave it as it is. gradient: the objects may keep it."""
        for key, held in self._dictionaries():
            if memory is None:
                break
            if key in memory:
                held[name] = memory[key]
            else:
                held.pop(name, None)
        if self.memory_object is not None:
            gradient = self.memory_object.compensate(gradient, name)
        tensors, ctx = self.compressor.compress(gradient, name)
        if self.memory_object is not None:
            self.memory_object.update(gradient, name, self.compressor, tensors, ctx)
        kept = {key: held[name] for key, held in self._dictionaries() if name in held}
        return list(tensors), ctx, kept

    def replacement(
        self, gradient: Any, name: str, memory: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        tensors, ctx, kept = self.compressed(gradient, name, memory)
        return self.compressor.decompress(tensors, ctx), kept

    def combined(self, of_ranks: list[list[Any]], ctx: Any) -> Any:
        """The gradient from all ranks' compressed tensors."""
        total = [self.compressor.decompress(tensors, ctx) for tensors in of_ranks]
        aggregate = getattr(self.compressor, "aggregate", sum)
        return aggregate(total) / len(of_ranks) if self.averages else aggregate(total)

    def received(self, gradient: Any, ranks: int) -> Any:
        """gradient: the average of the ranks' decompressed gradients."""
        return gradient if self.averages else gradient * ranks

    def _dictionaries(self) -> list[tuple[str, dict[Any, Any]]]:
        return [
            (f"{role}.{key}", value)
            for role, held in (("compressor", self.compressor), ("memory", self.memory_object))
            for key, value in getattr(held, "__dict__", {}).items()
            if isinstance(value, dict)
        ]


def adds(aggregate: Callable | None) -> bool:
    """Whether it is a plain sum: tried with three vectors of each loaded framework."""
    if aggregate is None:
        return True
    vectors = ([3.0, -5.0, 0.5], [1.0, 8.0, 0.5], [-2.0, 2.0, 4.0])
    for framework, make in (("torch", "tensor"), ("tensorflow", "constant"), ("numpy", "array")):
        module = sys.modules.get(framework)
        if module is None or not hasattr(module, make):
            continue
        try:
            total = aggregate([getattr(module, make)(vector) for vector in vectors])
            if [float(x) for x in total] == [2.0, 5.0, 5.0]:
                return True
        except Exception:  # for tensors of another framework, perhaps
            continue
    return False


def _described(thing: Any) -> str:
    """Its class and its plain attributes: the same text on all ranks."""
    if thing is None:
        return "None"
    plain = (bool, int, float, str)
    attributes = sorted(getattr(thing, "__dict__", {}).items())
    given = ", ".join(f"{key}={value!r}" for key, value in attributes if isinstance(value, plain))
    return f"{type(thing).__name__}({given})"
