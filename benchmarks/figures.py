"""The figures that documents say are those of the committed results (benchmarks/results).

    python benchmarks/figures.py             # names each that differs from its result
    python benchmarks/figures.py --write     # and puts all of them right

Which there are, said.py knows: sentences, in which each {} is a figure, and tables, which stand in
documents between <!-- figures: NAME --> and <!-- end -->. Whoever measures again runs this with
--write, and reads whether what stands around the figures still holds.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from benchmarks.said import SENTENCES, TABLES, Said  # noqa: E402

NUMBER = r"(-?\d+(?:\.\d+)?)"
TABLE = re.compile(r"(<!-- figures: ([\w-]+) -->\n)(.*?)(<!-- end -->)", re.S)


def pattern(template: str) -> re.Pattern[str]:
    """That finds a template wherever lines are broken; ... stands for anything on a line."""
    text = re.escape(template).replace(r"\{\}", NUMBER).replace(r"\.\.\.", r"[^\n]*?")
    return re.compile(re.sub(r"(\\ )+", r"\\s+", text))


def corrected(said: Said, text: str) -> tuple[str, list[str]]:
    """The document with the sentence's figures, and what was wrong."""
    found = list(pattern(said.template).finditer(text))
    name = f"{said.document}: {said.template!r}"
    if len(found) != 1:
        return text, [f"{name} stands there {len(found)} times"]
    assert said.template.count("{}") == len(said.figures), name
    wrong = []
    for i, figure in reversed(list(enumerate(said.figures, 1))):
        begin, end = found[0].span(i)
        if text[begin:end] != figure:
            wrong.append(f"{name}: {text[begin:end]}, and {said.results} has {figure}")
            text = text[:begin] + figure + text[end:]
    return text, wrong


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
    docs = sorted((root / "docs").glob("*.md"))
    return ["README.md", "benchmarks/README.md", *(f"docs/{path.name}" for path in docs)]


def check(root: Path = ROOT, write: bool = False) -> list[str]:
    """What is wrong in the documents; `write`: was."""
    said, problems = [], []
    for sentences in SENTENCES:
        try:
            said += sentences()
        except (KeyError, FileNotFoundError) as why:
            problems.append(f"{sentences.__name__}: results lack {why}")
    for document in documents(root):
        path = root / document
        text, wrong = with_tables(document, path.read_text())
        for sentence in said:
            if sentence.document == document:
                text, more = corrected(sentence, text)
                wrong += more
        if write and text != path.read_text():
            path.write_text(text)
        problems += wrong
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="put them right in the documents")
    write = parser.parse_args().write
    print("\n".join(check(write=write)) or "all figures are those of the results")
    return 1 if check() else 0


if __name__ == "__main__":
    sys.exit(main())
