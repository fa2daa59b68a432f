"""Rates of links, as people write them: 10gbit, 2.5Gbit/s and 100Mbps all count bits."""

from __future__ import annotations

import argparse
import re

UNITS = {"k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}


class NoRate(argparse.ArgumentTypeError, ValueError):
    """An invalid rate; argparse shows the message unchanged."""


def rate(text: str) -> str:
    """The rate in tc's words: 10gbit. (tc's own "bps" means bytes.)"""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([kmgt])(bit|bps|bit/s)", text.lower())
    if not found or float(found[1]) == 0:
        raise NoRate(f"{text!r} is not a rate, such as 100mbit, 2.5gbit or 10gbit")
    return f"{found[1]}{found[2]}bit"


def rate_bytes(text: str) -> float:
    """The rate in bytes/s."""
    number, unit = rate(text)[:-4], rate(text)[-4]
    return float(number) * UNITS[unit] / 8


def rate_text(text: str) -> str:
    """The rate for people: 10 Gbit/s."""
    return f"{rate(text)[:-4]} {rate(text)[-4].upper().replace('K', 'k')}bit/s"
