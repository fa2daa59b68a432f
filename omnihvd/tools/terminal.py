"""How wide the output of a command may be, and text that keeps to it."""

from __future__ import annotations

import os
import sys
import textwrap
from typing import TextIO

USUAL = 80


def width(stream: TextIO | None = None) -> int | None:
    """COLUMNS if it is set, else the terminal's. None: a pipe or a file, whose reader wants whole
    lines."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdigit() and int(columns) > 0:
        return int(columns)
    try:
        return os.get_terminal_size((stream or sys.stdout).fileno()).columns or USUAL
    except (OSError, ValueError):
        return None


def fill(text: str, columns: int | None, first: str = "", then: str = "") -> str:
    """In lines of so many columns at most; words are not broken. first, then: what begins the first
    line, and the others."""
    if columns is None:
        return first + text
    return textwrap.fill(
        text,
        max(columns, len(then) + 20),
        initial_indent=first,
        subsequent_indent=then,
        break_long_words=False,
        break_on_hyphens=False,
    )
