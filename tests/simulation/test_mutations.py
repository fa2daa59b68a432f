"""The bugs that benchmarks/mutations.py puts in are put in where it says."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
from benchmarks.mutations import MUTATIONS, ROOT


def test_each_has_its_place() -> None:
    for mutation in MUTATIONS:
        text = (ROOT / mutation.file).read_text()
        assert text.count(mutation.right) == 1, mutation.bug
