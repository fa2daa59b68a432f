"""Figures of the documents are those of the committed results (benchmarks/results)."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
from benchmarks import figures  # noqa: E402
from benchmarks.said import SENTENCES, TABLES, Said  # noqa: E402
from omnihvd.engine import session  # noqa: E402


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    (tmp_path / "benchmarks").mkdir()
    for document in ("README.md", "benchmarks/README.md"):
        shutil.copy(ROOT / document, tmp_path / document)
    return tmp_path


def test_documents_say_what_was_measured() -> None:
    assert not figures.check(), "see python benchmarks/figures.py --write"


def test_each_table_stands_in_a_document() -> None:
    texts = [path.read_text() for path in [*ROOT.glob("*.md"), *ROOT.glob("*/*.md")]]
    there = {name for text in texts for _, name, _, _ in figures.TABLE.findall(text)}
    assert there == set(TABLES)


def test_a_wrong_figure_is_named_and_put_right(copy: Path) -> None:
    readme = copy / "README.md"
    right = readme.read_text()
    wrong = re.sub(r"That is \d\.", "That is 7.", right).replace("| 100% | ", "| 100% | 9")
    assert wrong != right
    readme.write_text(wrong)
    table, sentence = figures.check(copy)
    assert table == "README.md: the table 'hosts4' is not that of the results"
    assert "That is {} to {} times" in sentence and ": 7." in sentence and ".json has " in sentence
    assert figures.check(copy, write=True) and readme.read_text() == right


@pytest.mark.parametrize("text", ["", "1 ms and 2 ms, 1 ms and 2 ms"])
def test_a_sentence_that_is_gone_or_not_alone_is_named(text: str) -> None:
    said = Said("x.md", "x.json", "{} ms and {} ms", ["1", "2"])
    assert figures.corrected(said, text)[1] == [
        f"x.md: '{{}} ms and {{}} ms' stands there {text.count('and')} times"
    ]


def test_results_that_are_gone_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def sentences() -> list[Said]:
        raise KeyError("x.json has no gloo")

    monkeypatch.setattr(figures, "SENTENCES", [sentences])
    assert figures.check() == ["sentences: results lack 'x.json has no gloo'"]


def test_figures_are_put_right_wherever_lines_break() -> None:
    said = Said("x.md", "x.json", "`a(... | {} s and {}%", ["0.25", "-3"])
    text, wrong = figures.corrected(said, "| `a(b) | c | 1.5 s\n and 10%. 0.25 s")
    assert text == "| `a(b) | c | 0.25 s\n and -3%. 0.25 s" and len(wrong) == 2


def test_defaults_that_documents_name_are_the_settings() -> None:
    defaults = {name: default for name, default, *_ in session.setting_docs()}

    def default(name: str, unit: int = 1) -> str:
        return f"{int(defaults[f'OMNIHVD_{name}']) / unit:g}"

    block, small = default("BLOCK_SIZE"), default("MIN_BYTES", 1024)
    slots = [default("SLOTS"), default("MESSAGE_BYTES", 1024)]
    chunk, patience = default("GPU_CHUNK_BYTES", 1 << 20), default("STALL_WARNING")
    for document, template, values in [
        ("README.md", "tensors under {} KiB)", [small]),
        ("docs/tuning.md", "`OMNIHVD_MIN_BYTES` ({} KiB)", [small]),
        ("docs/tuning.md", "slots x message bytes ({} x {} KiB)", slots),
        ("docs/gpu.md", "`OMNIHVD_GPU_CHUNK_BYTES` ({} MiB)", [chunk]),
        ("docs/compression.md", "Blocks have {} elements, or `OMNIHVD_BLOCK_SIZE`", [block]),
        ("docs/codecs.md", "each block ({} elements, `OMNIHVD_BLOCK_SIZE`)", [block]),
        ("docs/architecture.md", "cut into **blocks** of {} elements", [block]),
        ("docs/troubleshooting.md", "no progress for {} s", [patience]),
    ]:
        said = Said(document, "settings.cc", template, values)
        assert not figures.corrected(said, (ROOT / document).read_text())[1]


TIMES = re.compile(r"\d[\d.]* (?:ms|s/GB|GB/s|times as fast)\b")
CHOSEN = re.compile(  # by who wrote the program or the example: no measurement
    r"or 5 ms,|sums take 30 ms|from 0\.1 ms on instead of 1 ms|from 0\.02 ms on|up to 1 ms in a sum"
    r"|`HOROVOD_CYCLE_TIME` \(1 ms\)|10 Gbit/s and 1 ms are"
)
# gpu.md predicts, and says so; tour.md shows what a command prints.
OTHERS = ("docs/gpu.md", "docs/tour.md")


def test_no_time_is_said_that_is_not_compared() -> None:
    said = [sentence for sentences in SENTENCES for sentence in sentences()]
    for document in figures.documents(ROOT):
        text = (ROOT / document).read_text()
        if document == "benchmarks/README.md":  # of the map, what its own page has
            text = re.sub(r"\n## The map\n.*?(?=\n## )", "", text, flags=re.S)
        text = figures.TABLE.sub("", text)
        for sentence in said:
            if sentence.document == document:
                text = figures.pattern(sentence.template).sub("", text)
        if document not in OTHERS:
            text = CHOSEN.sub("", text)
            alone = [text[found.start() - 50 : found.end()] for found in TIMES.finditer(text)]
            assert not alone, f"{document}: name their results in benchmarks/said"
