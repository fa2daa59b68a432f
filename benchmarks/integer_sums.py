"""Sums of floats as integers of a common scale, in closed form: what the engine, aggregators in the
data path and OMNIHVD_ARITHMETIC=integer are compared with."""

from __future__ import annotations

from typing import Any

import numpy as np

BLOCK = 256


def in_integers(rows: np.ndarray, arithmetic: Any, seed: int | None = None) -> np.ndarray:
    """float32 [n] of the rows of [ranks, n]: of each block integers, of the scale of its largest
    exponent on any rank. arithmetic: the engine's own functions, of _engine_tests. seed: with it
    each rank's integers are powers of two, as natural compression draws them."""
    bits = arithmetic.bits_for(len(rows))
    total = np.empty(rows.shape[1], np.float32)
    for at in range(0, rows.shape[1], BLOCK):
        block = rows[:, at : at + BLOCK].astype(np.float32)
        exponent = max(arithmetic.exponent_of(row) for row in block)
        if seed is None:
            integers = [arithmetic.to_integers(row, exponent, bits)[0] for row in block]
        else:
            codes = [
                arithmetic.to_codes(row, exponent, bits, seed, rank, at // BLOCK)[0]
                for rank, row in enumerate(block)
            ]
            integers = [arithmetic.from_codes(code) for code in codes]
        added = arithmetic.to_floats(np.sum(integers, 0, dtype=np.int64), exponent, bits)
        total[at : at + BLOCK] = arithmetic.with_no_numbers(block, added, added=True)
    return total
