"""The product stays within its budget of lines, and its history within the rule of messages."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMMITS = runpy.run_path(str(ROOT / ".ci" / "commits"))
SIZE = runpy.run_path(str(ROOT / ".ci" / "size"))
PROSE = runpy.run_path(str(ROOT / ".ci" / "prose"))


def test_no_part_is_larger_than_its_limit() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / ".ci" / "size"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout


def numbers(text: str) -> list[int]:
    return [int(number.replace(",", "")) for number in re.findall(r"\d[\d,]*", text)]


def test_hacking_has_the_parts_lines() -> None:
    """It may lag behind by 1%, so that not each commit changes the document."""
    text, lines = (ROOT / "HACKING.md").read_text(), SIZE["count"]()
    for part, (_, goal, _) in SIZE["PARTS"].items():
        row = re.search(rf"^\| {part} \| ([\d,]+) \| ([\d,]+) \|", text, re.MULTILINE)
        assert row, f"HACKING.md has no row for {part}"
        said, wanted = (numbers(cell)[0] for cell in row.groups())
        assert wanted == goal and abs(said - lines[part]) <= lines[part] / 100, (
            f"HACKING.md says {said:,} lines for {part} and a goal of {wanted:,}; "
            f"make size says {lines[part]:,} and {goal:,}"
        )


def test_hacking_has_the_cores_lines_by_feature() -> None:
    text = (ROOT / "HACKING.md").read_text()
    table = re.search(r"\| feature \| lines \| where \|\n\|---.*\n((?:\|.*\n)+)", text)
    assert table
    rows = [line.strip("| ").split(" | ") for line in table[1].splitlines()]
    said = {name: numbers(number)[0] for name, number, *_ in rows}
    places = {path: name for name, *cells in rows for path in re.findall("`([^`]+)`", cells[-1])}
    (places[""],) = set(said) - set(places.values())  # all that no row names
    lines = dict.fromkeys(said, 0)
    prefixes = {part: tuple(SIZE["PARTS"][part][2]) for part in SIZE["PARTS"] if part != "core"}
    listed = subprocess.run(
        ["git", "ls-files", "omnihvd"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    for path in listed.splitlines():
        if (ROOT / path).exists() and not path.startswith(sum(prefixes.values(), ())):
            name = path[len("omnihvd/") :]
            place = max(filter(name.startswith, places), key=len)
            lines[places[place]] += (ROOT / path).read_bytes().count(b"\n")
    assert sum(lines.values()) == SIZE["count"]()["core"]
    stale = {
        name: (said[name], n) for name, n in lines.items() if abs(said[name] - n) > 20 + n / 20
    }
    assert not stale, f"HACKING.md's lines of a feature, and the files': {stale}"
    assert abs(sum(said.values()) - sum(lines.values())) <= sum(lines.values()) / 100


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ("sums: let int32 cost nothing\n\nEach paid an allgather.", None),
        ("Sums of int32 cost nothing\n\nBody.", "area: imperative"),
        ("sums: let int32 cost nothing", "body"),
        (f"sums: {'x' * 60}\n\nBody.", "66 characters"),
    ],
)
def test_messages_of_commits(message: str, problem: str | None) -> None:
    found = COMMITS["problems"](message)
    assert not found if problem is None else problem in found[0]


@pytest.mark.parametrize(
    ("path", "source", "count"),
    [
        ("x.py", "# The ranks, of which one\n# is late.\nx = 'sums whose rank'\n", 2),
        ("x.cc", "// Who waits is told.\nint x;  // the rank whose sum it is\n", 2),
        ("x.md", "The rank ends. That is all.\n\n```\nOf what\n```\n", 1),
        ("x.md", "Ranks wait.\n", 0),
    ],
)
def test_sentences_that_break_the_rule_are_found(
    path: str, source: str, count: int, tmp_path: Path
) -> None:
    (tmp_path / path).write_text(source)
    texts = [text for _, text in PROSE["texts"](tmp_path / path)]
    rules = PROSE["RULES"].values()
    assert sum(len(rule.findall(text)) for rule in rules for text in texts) == count
