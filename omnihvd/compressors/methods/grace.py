"""Objects with the interface of GRACE: Xu et al., "GRACE: a compressed communication framework for
distributed machine learning" (ICDCS 2021).

    compressor.compress(tensor, name) -> (tensors, ctx)      compressor.decompress(tensors, ctx)
    compressor.aggregate(tensors)                            compressor.average
    memory.compensate(tensor, name)
    memory.update(tensor, name, compressor, tensors, ctx)

GRACE gathers what the ranks compressed, and adds what it decompresses to. Here a rank decompresses
its own, and that is summed: the same, for fewer bytes where it is sparse. So it does not matter
whether `tensors_size_are_same`.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any

from omnihvd.compressors.rules import Rule


@dataclass(frozen=True)
class GraceObjects(Rule):
    factory = "grace"
    error_feedback = None
    replaces = True
    compressor: Any
    memory_object: Any

    def arguments(self) -> list[tuple[str, str]]:
        return [
            ("compressor", _described(self.compressor)),
            ("memory", _described(self.memory_object)),
        ]

    def check_use(self, averages: bool, grouped: bool) -> None:
        if not averages:
            raise ValueError("objects of GRACE's interface say what is averaged: op=hvd.Average")

    def replacement(
        self, gradient: Any, name: str, memory: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
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
        return self.compressor.decompress(tensors, ctx), kept

    def received(self, ops: ModuleType, gradient: Any, ranks: int) -> Any:
        """gradient: the ranks' average."""
        total = gradient * ranks
        if hasattr(self.compressor, "aggregate"):
            total = self.compressor.aggregate([total])
        return total / ranks if getattr(self.compressor, "average", True) else total

    def _dictionaries(self) -> list[tuple[str, dict[Any, Any]]]:
        return [
            (f"{role}.{key}", value)
            for role, held in (("compressor", self.compressor), ("memory", self.memory_object))
            for key, value in getattr(held, "__dict__", {}).items()
            if isinstance(value, dict)
        ]


def _described(thing: Any) -> str:
    """The same on all ranks: its class, and its attributes that are plain."""
    if thing is None:
        return "None"
    plain = (bool, int, float, str)
    attributes = sorted(getattr(thing, "__dict__", {}).items())
    given = ", ".join(f"{key}={value!r}" for key, value in attributes if isinstance(value, plain))
    return f"{type(thing).__name__}({given})"
