"""The product stays within its budget of lines, and its history within the rule of messages."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMMITS = runpy.run_path(str(ROOT / ".ci" / "commits"))
PROSE = runpy.run_path(str(ROOT / ".ci" / "prose"))


def test_no_part_is_larger_than_its_limit() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / ".ci" / "size"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout


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
