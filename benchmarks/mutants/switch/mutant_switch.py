"""The switch of all mutants in Python; base/mutant_switch.h has that in C++."""

from __future__ import annotations

import mmap
import os

chosen = -1
reached: bytearray | mmap.mmap = bytearray(1 << 16)


def choose() -> None:
    """Anew from the environment."""
    global chosen, reached
    chosen = int(os.environ.get("MUTANT_CHOSEN", "-1"))
    path = os.environ.get("MUTANTS_REACHED")
    if path and os.path.exists(path):  # noqa: PTH110
        with open(path, "r+b") as file:  # noqa: PTH123
            reached = mmap.mmap(file.fileno(), 1 << 16)


def mutant(number: int) -> bool:
    reached[number] = 1
    return number == chosen


choose()
