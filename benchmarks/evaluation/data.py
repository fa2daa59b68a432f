"""Files inside packages, which are not imported, only read: `pip install '.[evaluation]'`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "models"))
import sources


def file_of(package: str, path: str) -> Path:
    file = sources.of_package(package, path)
    if file is None:
        raise SystemExit(f"{package} has the data of this task: pip install '.[evaluation]'")
    return file
