"""Tables of the documents are those of the committed results (benchmarks/results)."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
from benchmarks import figures  # noqa: E402
from benchmarks.tables import TABLES  # noqa: E402
from omnihvd.engine import session  # noqa: E402


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for document in figures.documents(ROOT):
        (tmp_path / document).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / document, tmp_path / document)
    return tmp_path


def test_documents_say_what_was_measured() -> None:
    assert not figures.check(), "see python benchmarks/figures.py --write"


def test_each_table_stands_in_a_document() -> None:
    texts = [path.read_text() for path in [*ROOT.glob("*.md"), *ROOT.glob("*/*.md")]]
    there = {name for text in texts for _, name, _, _ in figures.TABLE.findall(text)}
    assert there == set(TABLES)


def test_a_wrong_table_is_named_and_put_right(copy: Path) -> None:
    readme = copy / "README.md"
    right = readme.read_text()
    readme.write_text(right.replace("| 100% | ", "| 100% | 9"))
    assert readme.read_text() != right
    assert figures.check(copy) == ["README.md: the table 'hosts4' is not that of the results"]
    assert figures.check(copy, write=True) and readme.read_text() == right


def test_defaults_that_documents_name_are_the_settings() -> None:
    defaults = {name: default for name, default, *_ in session.setting_docs()}

    def default(name: str, unit: int = 1) -> str:
        return f"{int(defaults[f'OMNIHVD_{name}']) / unit:g}"

    block = default("BLOCK_SIZE")
    (text,) = (row[3] for row in session.setting_docs() if row[0] == "OMNIHVD_MIN_BYTES")
    at, below, first = re.search(r"under (\d+) bytes, .* under (\d+) MB: (\d+), or", text).groups()
    small = f"{int(at) / 1024:g}"
    slots = [default("SLOTS"), default("MESSAGE_BYTES", 1024)]
    chunk, patience = default("GPU_CHUNK_BYTES", 1 << 20), default("STALL_WARNING")
    for document, template, values in [
        ("README.md", "under {} KiB, and Gloo makes a group's first sums under {}", [small, below]),
        ("docs/algorithms.md", "under {} MB of a group or process set: {}, or", [below, first]),
        ("docs/tuning.md", "under {} KiB, and Gloo a group's first ones under {}", [small, below]),
        ("docs/tuning.md", "slots x message bytes ({} x {} KiB)", slots),
        ("docs/gpu.md", "`OMNIHVD_GPU_CHUNK_BYTES` ({} MiB)", [chunk]),
        ("docs/compression.md", "Blocks have {} elements, or `OMNIHVD_BLOCK_SIZE`", [block]),
        ("docs/codecs.md", "each block ({} elements, `OMNIHVD_BLOCK_SIZE`)", [block]),
        ("docs/protocol.md", "cut into **blocks** of {} elements", [block]),
        ("docs/troubleshooting.md", "no progress for {} s", [patience]),
    ]:
        text = " ".join((ROOT / document).read_text().split())
        assert template.format(*values) in text, f"{document}: {template}: {values}"
