"""Where a mutant differs from the source, and which mutants are tried."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
CXX, COMPRESSION = "omnihvd/csrc", "omnihvd/compression"
# A file belongs to the first part that has a pattern for it.
PARTS = {
    "protocol": [f"{CXX}/protocol/*"],
    "engine": [f"{CXX}/engine/*"],
    "algorithms": [f"{CXX}/algorithms/{folder}*" for folder in ("", "direct/", "shared_memory/")],
    "codecs": [
        *(f"{CXX}/numeric/{name}*" for name in ("codec", "lossless", "block_coder")),
        *(f"{CXX}/communicator/coded_buffer*", f"{COMPRESSION}/*codec*.py"),
    ],
    "compressors": [f"{COMPRESSION}/*.py", f"{COMPRESSION}/methods/*.py"],
}


class Site(NamedTuple):
    """`text[start:end]` of a file becomes `mutated`. The offsets are of the file's bytes."""

    path: str
    start: int
    end: int
    operator: str  # relational, bound, arithmetic, logical, constant, removed
    change: str  # for people: "< to <="
    mutated: str
    form: str  # expression, condition (is negated), statement (is left out)
    line: int
    source: str  # the line, stripped
    column: int  # in `source`, so that a change of indentation does not matter
    turn: int = 0  # of equal places in a file

    def key(self) -> str:
        return f"{self.path}|{self.source}|{self.column}|{self.change}|{self.turn}"

    def place(self) -> str:
        return f"{self.path}:{self.line}: {self.change}: {self.source}"


def part_of(path: str) -> str:
    for part, patterns in PARTS.items():
        if any(Path(path).match(pattern) for pattern in patterns):
            return part
    raise ValueError(f"{path} is of no part")


def files(root: Path = ROOT) -> list[str]:
    found = (path for patterns in PARTS.values() for p in patterns for path in root.glob(p))
    names = {str(path.relative_to(root)) for path in found if path.suffix in (".cc", ".h", ".py")}
    return sorted(names - {f"{COMPRESSION}/__init__.py"})


def where(text: str, start: int) -> tuple[int, str, int]:
    """The line of an offset, its text, and the column in it."""
    begin = text.rfind("\n", 0, start) + 1
    whole = text[begin:].split("\n", 1)[0]
    return text.count("\n", 0, start) + 1, whole.strip(), start - begin - whole.index(whole.strip())


def numbered(found: Iterable[Site]) -> list[Site]:
    """In the file's order, each once, and equal ones told apart."""
    turns: Counter[str] = Counter()
    result = []
    for site in sorted(set(found), key=lambda s: (s.path, s.start, -s.end, s.change)):
        result.append(site._replace(turn=turns[site.key()]))
        turns[site.key()] += 1
    return result


def sample(found: list[Site], seed: int, most: int) -> list[Site]:
    """In proportion to the sites of each part; a change elsewhere leaves the choice as it is."""

    def drawn(site: Site) -> str:
        return hashlib.sha256(f"{seed} {site.key()}".encode()).hexdigest()

    return sorted(found, key=drawn)[:most]
