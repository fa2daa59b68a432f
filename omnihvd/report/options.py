"""The words between --report and the script."""

from __future__ import annotations

import functools
import re
from typing import Callable

from omnihvd import report

RATE = re.compile(r"\d[\d.]*[a-z]*")


def split(words: list[str]) -> tuple[Callable[[], None], list[str]]:
    """words: --report FOLDER [--rate RATE ...] [--ranks N ...] [--every N] SCRIPT ... Returns what
    begins the report, and the script with its own words. ValueError where they are none."""
    if len(words) < 3:
        raise ValueError("name a folder, and the script to run: --report out/ train.py")
    folder, rest = words[1], words[2:]
    rates: list[str] = []
    ranks: list[int] = []
    every = None
    while rest and rest[0] in ("--rate", "--ranks", "--every"):
        option, rest = rest[0], rest[1:]
        values: list[str] = []
        while rest and RATE.fullmatch(rest[0]) and not (option == "--every" and values):
            values.append(rest.pop(0))
        if not values:
            raise ValueError(f"{option} needs a number")
        if option == "--rate":
            from omnihvd.report.predictions import rate_bytes

            for rate in values:
                rate_bytes(rate)
            rates = values
        elif option == "--ranks":
            ranks = [_integer(option, value, 2) for value in values]
        else:
            every = _integer(option, values[0], 1)
    begin = functools.partial(
        report.start, folder, rates=rates or None, ranks=ranks or None, every=every
    )
    return begin, rest


def _integer(option: str, text: str, least: int) -> int:
    if not text.isdigit() or int(text) < least:
        raise ValueError(f"{option} {text}: a number of {least} or more")
    return int(text)
