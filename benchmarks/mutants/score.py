"""Results by part and operator. equal.txt names mutants that no test can tell from the code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.mutants.sites import Site, part_of

EQUAL = Path(__file__).with_name("equal.txt")


def equal() -> dict[tuple[str, str, str], str]:
    """Why, for a file, a line of it without indentation, and a change."""
    result = {}
    for entry in EQUAL.read_text().split("\n\n"):
        lines = [line for line in entry.splitlines() if not line.startswith("#")]
        if lines:
            path, source, change, *why = lines
            result[path, source, change] = " ".join(line.strip() for line in why)
    return result


def is_alive(answer: str) -> bool:
    """Whether all tests passed, in the time for them; the others fail, hang or end by a signal."""
    return answer in ("", "bound", "unreached")


def outcome(site: Site, answer: str | None, equals: set[tuple[str, str, str]]) -> str:
    """killed, equal, survived, unreached; left out: it does not compile."""
    if answer is None:
        return "left out"
    if not is_alive(answer):
        return "killed"
    if (site.path, site.source, site.change) in equals:
        return "equal"
    return "unreached" if answer == "unreached" else "survived"


def counted(sites: list[Site], answers: dict[str, str]) -> list[dict[str, Any]]:
    """A row for each part and operator; answers are by the key of a site."""
    equals = set(equal())
    rows: dict[tuple[str, str], dict[str, int]] = {}
    for site in sites:
        row = rows.setdefault((part_of(site.path), site.operator), {})
        how = outcome(site, answers.get(site.key()), equals)
        row[how] = row.get(how, 0) + 1
    return [{"part": p, "operator": o, **row} for (p, o), row in sorted(rows.items())]


def survivors(sites: list[Site], answers: dict[str, str]) -> list[str]:
    equals = set(equal())
    left = [(outcome(s, answers.get(s.key()), equals), s) for s in sites]
    return [f"{how}: {s.place()}" for how, s in left if how in ("survived", "unreached")]


def load(path: Path) -> dict[str, str]:
    """How each mutant of an earlier run ended, by the key of its site."""
    return json.loads(path.read_text())["answers"] if path.exists() else {}
