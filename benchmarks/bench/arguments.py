"""Types of the benchmark's command-line arguments, with error messages for wrong ones."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError

from omnihvd import engine, rates

UNITS = {"": 1, "k": 1e3, "m": 1e6, "g": 1e9, "ki": 2**10, "mi": 2**20, "gi": 2**30}


def dtype(text: str) -> str:
    """A dtype that both NumPy and the engine have: not bfloat16."""
    import numpy as np

    known = [name for name in engine.session.dtypes if hasattr(np, name)]
    if text not in known:
        raise ArgumentTypeError(f"not one of {', '.join(known)}: {text}")
    return text


def size(text: str) -> float:
    """Bytes: 10MB, 64KiB, 1e8."""
    found = re.fullmatch(r"([\d.]+(?:e\d+)?) *(?:(|[kmg]i?)b)?", text.lower())
    try:
        if not found:
            raise ValueError
        number = float(found[1]) * UNITS[found[2] or ""]
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not a size, such as 10MB, 64KiB or 1e8") from None
    if number < 1:
        raise ArgumentTypeError(f"{text!r} is less than a byte")
    return number


def density(text: str) -> float:
    """A share, 0 to 1."""
    try:
        number = float(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not a number") from None
    if not 0 <= number <= 1:
        raise ArgumentTypeError(f"{text!r} is not a share from 0 to 1")
    return number


def rate(text: str) -> str:
    """A link's rate in tc's words, or "none"."""
    return "none" if text.lower() == "none" else rates.rate(text)


def delay(text: str) -> str:
    """A delay in tc's words."""
    if not re.fullmatch(r"\d+(\.\d+)?(s|ms|us)", text.lower()):
        raise ArgumentTypeError(f"{text!r} is not a delay, such as 1ms or 500us")
    return text.lower()


def ranks(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise ArgumentTypeError(f"{text!r} is not a number of ranks")
    return int(text)
