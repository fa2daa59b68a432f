"""Tables of the documents are generated from the committed results (benchmarks/results).

    python benchmarks/figures.py             # names each table that differs from its results
    python benchmarks/figures.py --write     # and writes all of them anew

A table stands between <!-- figures: NAME --> and <!-- end -->, and benchmarks/tables makes it.
Sentences are prose: whoever measures again reads the sentences beside the table, too.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from benchmarks.tables import TABLES  # noqa: E402

TABLE = re.compile(r"(<!-- figures: ([\w-]+) -->\n)(.*?)(<!-- end -->)", re.S)


def with_tables(document: str, text: str) -> tuple[str, list[str]]:
    wrong = []

    def fresh(found: re.Match[str]) -> str:
        begin, name, table, end = found.groups()
        right = TABLES[name]() + "\n"
        if table != right:
            wrong.append(f"{document}: the table {name!r} is not that of the results")
        return begin + right + end

    return TABLE.sub(fresh, text), wrong


def documents(root: Path) -> list[str]:
    found = [path for folder in ("benchmarks", "docs") for path in (root / folder).glob("*.md")]
    return ["README.md", *sorted(str(path.relative_to(root)) for path in found)]


def check(root: Path = ROOT, write: bool = False) -> list[str]:
    """Names each table that differs from its results; `write`: that differed."""
    problems = []
    for document in documents(root):
        path = root / document
        text, wrong = with_tables(document, path.read_text())
        if write and wrong:
            path.write_text(text)
        problems += wrong
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="write the tables anew")
    write = parser.parse_args().write
    print("\n".join(check(write=write)) or "all tables are those of the results")
    return 1 if check() else 0


if __name__ == "__main__":
    sys.exit(main())
