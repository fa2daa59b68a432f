"""What arguments of compressors may be; TypeError and ValueError name the argument that is not."""

from __future__ import annotations

from numbers import Integral, Real


def number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} is {value!r}: it must be a number, not {_kind(value)}")
    return float(value)


def count(name: str, value: object, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} is {value!r}: it must be an integer, not {_kind(value)}")
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


def _kind(value: object) -> str:
    return type(value).__name__
