"""HACKING.md's table of changes: its files have what is to be changed, and it counts them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| (.+) \| (\d+) \| (\d+) \| (.+) \|$", re.MULTILINE)
FILE = re.compile(r"(new )?`([^`]+)` \(`([^`]+)`\)")
CHANGES = ROW.findall((ROOT / "HACKING.md").read_text().partition("## Ten changes")[2])


def test_there_are_at_least_ten() -> None:
    assert len(CHANGES) >= 10


@pytest.mark.parametrize(
    ("changed", "new", "files"),
    [pytest.param(int(changed), int(new), files, id=name) for name, changed, new, files in CHANGES],
)
def test_its_files(changed: int, new: int, files: str) -> None:
    named = FILE.findall(files)
    assert [bool(is_new) for is_new, *_ in named].count(True) == new
    assert len(named) == changed + new
    assert FILE.sub("", files).strip(" ,") == "", "a file without its name"
    for _, path, name in named:
        assert re.search(rf"(?<!\w){re.escape(name)}(?!\w)", (ROOT / path).read_text()), path
