"""Commands of .ci that somebody calls without make, or without git."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Without git's folder."""
    names = ("sanitize", "coverage", "fuzz", "prose", "commits")
    for name in (*(f".ci/{name}" for name in names), "benchmarks/bench/source.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def call(folder: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    given = {**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent), "LC_ALL": "C", **env}
    return subprocess.run(
        words, cwd=folder, env=given, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(
    ("words", "tool"),
    [
        ([".ci/sanitize", "address,undefined"], "python"),
        ([".ci/coverage"], "python"),
        ([".ci/fuzz", "integers"], "cmake"),
    ],
)
def test_tools_are_those_of_the_virtual_environment(
    checkout: Path, words: list[str], tool: str
) -> None:
    stub = checkout / ".venv" / "bin" / tool
    stub.parent.mkdir(parents=True)
    stub.write_text("#!/bin/sh\necho it is the environment\\'s >&2\nexit 7\n")
    stub.chmod(0o700)
    done = call(checkout, *words)
    assert done.returncode and "it is the environment's" in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("prose", "prose: git lists no files, so nothing is checked: "),
        ("commits", "commits: git has no log, so nothing is checked: "),
    ],
)
def test_without_a_history_nothing_passes(checkout: Path, name: str, said: str) -> None:
    done = call(checkout, f".ci/{name}")
    assert done.returncode == 1 and said in done.stderr and "not a git repository" in done.stderr


def test_a_shallow_clone_has_no_messages_to_check(checkout: Path, tmp_path: Path) -> None:
    who = ("-c", "user.name=nobody", "-c", "user.email=nobody@example.org")
    for words in (("init", "-q"), ("add", "-A"), ("commit", "-qm", "all")):
        assert call(checkout, "git", *who, *words).returncode == 0
    assert call(checkout, ".ci/commits").returncode == 1  # a whole one without the base
    (checkout / ".git" / "shallow").write_text(call(checkout, "git", "rev-parse", "HEAD").stdout)
    done = call(checkout, ".ci/commits")
    assert done.returncode == 0, done.stderr
