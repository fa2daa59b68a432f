"""Moments of absolute values, in little memory: what thresholds are fitted to."""

from __future__ import annotations

from typing import Any

MANY, RUN = 1 << 20, 1 << 10  # elements
CHUNK = 1 << 18  # elements examined together: their copy stays in the processor's cache


def exceedance(ops: Any, total: Any, limit: float) -> tuple[float, float, float]:
    """How many elements' absolute values exceed `limit`, and the sum and the sum of squares of the
    excesses."""
    size = len(total) if ops.on_device(total) else min(CHUNK, len(total))
    buffer = ops.zeros(total[:size])
    moments = [0.0, 0.0, 0.0]
    for at in range(0, len(total), size):
        chunk = total[at : at + size]
        over = ops.abs(chunk, out=buffer[: len(chunk)])
        if limit:
            over -= limit
        moments = [sum(both) for both in zip(moments, ops.excess(over))]
    return moments[0], moments[1], moments[2]


def mean_log(ops: Any, total: Any) -> float:
    """The mean logarithm of the absolute values that are not 0. Logarithms are slow: of many
    elements it takes only runs from all over the array."""
    if len(total) >= MANY:
        total = total[: len(total) // RUN * RUN].reshape(-1, RUN)[::8].reshape(-1)
    sizes = abs(total)
    nonzero = int(ops.count(sizes))
    if nonzero < len(sizes):
        sizes[sizes == 0] = 1
    return float(ops.log(sizes).sum()) / max(nonzero, 1)
