"""The documents' promises that can be read off the sources."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_each_message_of_the_troubleshooting_table_exists() -> None:
    sources = [p for p in (ROOT / "omnihvd").rglob("*") if p.suffix in (".py", ".cc", ".h")]
    # Literals that are written in pieces are one text.
    code = re.sub(r'"\s*(<< )?f?"', "", "\n".join(path.read_text() for path in sources))
    table = (ROOT / "docs/troubleshooting.md").read_text()
    messages = re.findall(r"(?:^\| |, )`(.*?)`(?=,| \|)", table, re.MULTILINE)
    assert len(messages) > 10
    varying = (
        r"\.\.\.|MPI(?= \()|rank \d|aggregator \d|\((?:host|small|host:port)\)|\d+(?: s\b)?|float32"
    )
    for message in messages:
        for fixed in re.split(varying, message):
            assert fixed.strip(" ,:;") in code, f"no such message: {message} ({fixed})"
