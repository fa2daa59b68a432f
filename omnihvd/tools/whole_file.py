"""Writes files atomically: complete, or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """A file to write to. OSError names the path."""
    if path.exists() and not path.is_file():  # a device or a pipe stays what it is
        with path.open("wb") as file:
            yield file
        return
    part = path.with_name(f".{path.name}.part-{os.getpid()}")
    try:
        with part.open("wb") as file:
            yield file
        part.replace(path)
    except OSError as why:
        raise OSError(why.errno, why.strerror, str(path)) from why
    finally:
        part.unlink(missing_ok=True)
