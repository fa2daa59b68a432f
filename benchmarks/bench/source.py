"""The code and the time of a result, so that somebody can measure it again."""

from __future__ import annotations

import datetime
import os
import subprocess
from pathlib import Path
from typing import Any

FOLDERS = ("omnihvd", "kernels")


def source() -> dict[str, Any]:
    """date, commit, and trees: git's hashes of the product's folders in it, which stay when commits
    are rebased. dirty: whether files in them differ from the commit. load: of the machine, in the
    last 1, 5 and 15 minutes. Outside of a checkout commit and trees are "", and dirty None."""
    commit = _git("rev-parse", "--verify", "--quiet", "HEAD")
    changed = _git("status", "--porcelain", "--", *(f":/{folder}" for folder in FOLDERS))
    return {
        "date": datetime.date.today().isoformat(),
        "commit": commit,
        "trees": {f: _git("rev-parse", "--verify", "--quiet", f"HEAD:{f}") for f in FOLDERS},
        "dirty": bool(changed) if commit else None,
        "load": os.getloadavg(),
    }


def _git(*words: str) -> str:
    command = ["git", *words]
    folder = Path(__file__).parent
    return subprocess.run(command, cwd=folder, capture_output=True, text=True).stdout.strip()
