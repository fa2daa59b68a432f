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
    compressor: Any
    memory_object: Any

    def arguments(self) -> list[tuple[str, str]]:
        return [
            ("compressor", _described(self.compressor)),
            ("memory", _described(self.memory_object)),
        ]

    def decoded(self, gradient: Any, name: str) -> Any:
        """What is sent of a gradient: its like."""
        if self.memory_object is not None:
            gradient = self.memory_object.compensate(gradient, name)
        tensors, ctx = self.compressor.compress(gradient, name)
        if self.memory_object is not None:
            self.memory_object.update(gradient, name, self.compressor, tensors, ctx)
        return self.compressor.decompress(tensors, ctx)

    def received(self, ops: ModuleType, gradient: Any, ranks: int) -> Any:
        """gradient: the ranks' average."""
        total = gradient * ranks
        if hasattr(self.compressor, "aggregate"):
            total = self.compressor.aggregate([total])
        return total / ranks if getattr(self.compressor, "average", True) else total

    def kept(self, name: str) -> dict[str, Any]:
        """What the objects hold of a parameter: entries of that name in their dictionaries."""
        return {key: held[name] for key, held in self._dictionaries() if name in held}

    def restore(self, name: str, kept: dict[str, Any]) -> None:
        for key, held in self._dictionaries():
            if key in kept:
                held[name] = kept[key]
            else:
                held.pop(name, None)

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
