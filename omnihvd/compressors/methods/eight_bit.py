"""8-bit approximation, with the dynamic tree of Dettmers, "8-bit approximations for parallelism in
deep learning" (ICLR 2016)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from omnihvd.compressors.rules import Call, ElementRule

if TYPE_CHECKING:
    import numpy as np


def dynamic_tree() -> np.ndarray:
    """The 128 absolute values of a code's 7 bits, of the largest one: `zeros` zero bits, of a tenth
    each, a one, and the other bits as a fraction from 0.1 to 1, in the middle of their interval."""
    import numpy as np

    values = [0.0]
    for zeros in range(7):
        steps = 2 ** (6 - zeros)
        edges = np.linspace(0.1, 1, steps + 1)
        values.extend(10.0**-zeros * (edges[1:] + edges[:-1]) / 2)
    values[64] = 1.0  # the largest itself
    return np.sort(np.array(values))


@dataclass(frozen=True)
class EightBit(ElementRule):
    """Each element as the nearest of 255 values, of a dynamic tree below the largest of all."""

    factory = "eight_bit"

    def sent(self, total: Any, call: Call) -> Any:
        ops, tree = call.ops, dynamic_tree()
        absolute = ops.abs(total)
        largest = ops.maximum(ops.largest(absolute), 1e-30)
        middles = ops.constant((tree[1:] + tree[:-1]) / 2, total)
        codes = ops.bucket(ops.times(absolute, 1 / largest), middles)
        values = ops.times(ops.take(ops.constant(tree, total), codes), largest)
        return values * ops.sign(total)
