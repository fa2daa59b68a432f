"""Results name the code that was measured."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from benchmarks.bench import source


def test_a_result_names_what_it_is_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trees stay when the commit gets another message; whoever changes a file afterwards shows."""
    commit = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m"]

    def run(*words: str) -> str:
        return subprocess.run(
            words, cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout

    for folder in ("omnihvd", "kernels", "docs"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "file").write_text(folder)
    monkeypatch.setattr(source, "__file__", str(tmp_path / "omnihvd" / "source.py"))
    assert (source.source()["commit"], source.source()["dirty"]) == ("", None)
    run("git", "init", "-q")
    run("git", "add", ".")
    run(*commit, "first")
    first = source.source()
    assert first["commit"] == run("git", "rev-parse", "HEAD").strip() and first["dirty"] is False
    listed = run("git", "ls-tree", "HEAD").splitlines()
    assert all(f"tree {first['trees'][name]}\t{name}" in "".join(listed) for name in first["trees"])
    (tmp_path / "docs" / "file").write_text("changed")
    assert source.source()["dirty"] is False
    run(*commit, "second", "--amend", "--allow-empty")
    second = source.source()
    assert second["commit"] != first["commit"] and second["trees"] == first["trees"]
    (tmp_path / "kernels" / "new").write_text("")
    assert source.source()["dirty"] is True
    assert len(second["load"]) == 3
