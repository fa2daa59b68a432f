"""What a check finds, one line each, and how it is shown."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Finding:
    good: bool | None  # None: neither good nor bad
    subject: str
    found: str
    remedy: str = ""

    def lines(self) -> str:
        mark = {True: "ok", False: "--", None: "  "}[self.good]
        text = f"[{mark}] {self.subject:<24} {self.found}"
        return text + f"\n     {'':<24} -> {self.remedy}" * bool(self.remedy)
