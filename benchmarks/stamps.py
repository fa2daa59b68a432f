"""The code that made each entry of a results file.

A script that measures one part again keeps the others. Each entry names its own commit, because
the commit of the whole file would be that of the last run, which did not make the kept entries.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.bench.command import machine

STAMP = ("date", "commit", "trees", "dirty", "load")  # the keys of bench/source.py


def facts() -> dict[str, Any]:
    """The facts of the machine, without a stamp: the entries have theirs."""
    return {key: value for key, value in machine().items() if key not in STAMP}


def stamp_of(content: dict[str, Any]) -> dict[str, Any]:
    return {key: content[key] for key in STAMP if key in content}


def hand_down(content: dict[str, Any], entries: Iterable[dict[str, Any]]) -> None:
    """Moves the file's stamp, or its part's, into the entries that have none."""
    stamp = stamp_of(content)
    for entry in entries:
        if "commit" not in entry:
            entry.update(stamp)
    for key in stamp:
        del content[key]


def kept(file: Path) -> list[dict[str, Any]]:
    """The results in the file, each with its stamp; none if there is no file."""
    if not file.exists():
        return []
    content = json.loads(file.read_text())
    hand_down(content, content["results"])
    return list(content["results"])
