"""The width of a command's output, and text wrapped to it."""

from __future__ import annotations

import os
import sys
import textwrap
from typing import TextIO

USUAL = 80


def width(stream: TextIO | None = None) -> int | None:
    """COLUMNS if it is set, else the terminal's width. None: a pipe or a file, for whole lines."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdigit() and int(columns) > 0:
        return int(columns)
    try:
        return os.get_terminal_size((stream or sys.stdout).fileno()).columns or USUAL
    except (OSError, ValueError):
        return None


def fill(text: str, columns: int | None, first: str = "", then: str = "") -> str:
    """Wraps text to `columns`; words are not broken. first, then: the beginnings of the first line
    and of the others."""
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
