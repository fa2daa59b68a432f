"""The findings of a check, one line each, and their layout."""

from __future__ import annotations

from dataclasses import dataclass

from omnihvd.tools import terminal

INDENT = " " * 30  # of the finding's text


@dataclass
class Finding:
    good: bool | None  # None: neither good nor bad
    subject: str
    found: str
    remedy: str = ""

    def lines(self, columns: int | None = None) -> str:
        """The finding as text. columns: its width at most."""
        mark = {True: "ok", False: "--", None: "  "}[self.good]
        text = terminal.fill(self.found, columns, f"[{mark}] {self.subject:<24} ", INDENT)
        if not self.remedy:
            return text
        return f"{text}\n{terminal.fill(self.remedy, columns, INDENT + '-> ', INDENT + '   ')}"
