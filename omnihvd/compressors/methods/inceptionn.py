"""INCEPTIONN: Li et al., "A network-centric hardware/algorithm co-design to accelerate distributed
training of deep neural networks" (MICRO 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from omnihvd.compressors.rules import Call, ElementRule


@dataclass(frozen=True)
class Inceptionn(ElementRule):
    """Elements below 1 are cut, towards 0, to multiples of 2**-bits; others are sent as they are.

    So none errs by more than 2**-bits, and those below that are not sent.
    """

    factory = "inceptionn"
    bits: int

    def sent(self, total: Any, call: Call) -> Any:
        ops, steps = call.ops, 2.0**self.bits
        cut = ops.times(ops.trunc(ops.times(total, steps)), 1 / steps)
        return ops.select(ops.abs(total) < 1, cut, total)
