"""Checks arguments of compressors; TypeError and ValueError name the wrong argument."""

from __future__ import annotations

import inspect
from numbers import Integral, Real
from typing import Any


def number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} is {value!r}: it must be a number, not {type(value).__name__}")
    return float(value)


def count(name: str, value: object, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} is {value!r}: it must be an integer, not {type(value).__name__}")
    if value < least:
        raise ValueError(f"{name} is {value}: it must be at least {least}")
    return int(value)


def ratio(value: object, name: str = "ratio") -> float:
    share = number(name, value)
    if not 0 < share <= 1:
        raise ValueError(f"{name} is {share}: it must be above 0, and 1 at most")
    return share


def threshold(value: object) -> float:
    limit = number("threshold", value)
    if not 0 <= limit < float("inf"):
        raise ValueError(f"threshold is {limit}: it must be a finite number, 0 or more")
    return limit


def to_be_called(make: Any) -> None:
    """Marks a factory, so that `compression=factory` raises an error that says to call it."""

    def compress(_: Any) -> Any:
        known = inspect.signature(make).parameters.values()
        names = ", ".join(str(one.replace(annotation=one.empty)) for one in known)
        name = f"OmniReduce.{make.__name__}"
        raise TypeError(f"compression={name} is a function: call it, as {name}({names})")

    make.compress = compress


def called(compression: Any) -> None:
    """TypeError if `compression` is such a factory, even where nothing is to be compressed."""
    if inspect.isfunction(compression) and hasattr(compression, "compress"):
        compression.compress(None)
