"""Each planted bug of benchmarks/bugs applies to the engine as it is."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
from benchmarks.mutations import BUGS, ROOT, Bug


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.patch.stem)
def test_a_bug_applies(bug: Bug) -> None:
    bug.apply(ROOT, "--check")


def test_a_bug_that_no_longer_applies_is_named(tmp_path: Path) -> None:
    protocol = tmp_path / "omnihvd" / "csrc" / "protocol"
    shutil.copytree(ROOT / "omnihvd" / "csrc" / "protocol", protocol)
    for path in protocol.iterdir():
        path.write_text("")
    with pytest.raises(SystemExit, match="this bug's place has moved"):
        BUGS[0].apply(tmp_path)
