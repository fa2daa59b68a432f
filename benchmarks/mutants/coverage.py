"""Which mutants each killer reaches, kept in a file, so that a second run need not find out."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any


class Coverage:
    """The mutants that a killer reaches, by its name and its file's text; a line of JSON each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        lines = path.read_text().splitlines() if path.exists() else []
        self.known = {entry["killer"]: entry for entry in map(json.loads, lines)}

    @staticmethod
    def text(item: Any) -> str:
        return hashlib.sha256(item.path.read_bytes()).hexdigest()

    def get(self, item: Any) -> dict[str, Any] | None:
        found = self.known.get(item.nodeid)
        return found if found and found["text"] == self.text(item) else None

    def put(self, item: Any, entry: dict[str, Any]) -> dict[str, Any]:
        line = {"killer": item.nodeid, "text": self.text(item), **entry}
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        return line
