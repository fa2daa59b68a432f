"""A release has a version, its changes and a tag; documents say which protocol it speaks."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

import omnihvd
from omnihvd.engine import session

ROOT = Path(__file__).parents[2]
WIRE = (ROOT / "omnihvd/csrc/protocol/wire.h").read_text()
PROTOCOL = int(re.findall(r"kWireVersion = (\d+);", WIRE)[0])


def test_documents_say_which_protocol_it_speaks() -> None:
    page = (ROOT / "docs/compatibility.md").read_text()
    assert re.findall(r"protocol, now (\d+)\b", page) == [str(PROTOCOL)]


def test_the_changelog_has_this_version() -> None:
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.M)
    released = [heading for heading in headings if heading != "Unreleased"]
    version, dev, _ = omnihvd.__version__.partition(".dev")
    assert headings[:2].count("Unreleased") <= bool(dev)
    last, this = ([int(part) for part in text.split(".")] for text in (released[0], version))
    assert this > last if dev else this == last


def test_the_changelog_says_which_protocol_it_speaks() -> None:
    said = re.findall(r"protocol's\s+version\s+is\s+(\d+)", (ROOT / "CHANGELOG.md").read_text())
    assert int(said[0]) == PROTOCOL == session.protocol


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in (".ci/release", "CHANGELOG.md", "omnihvd/version.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "CHANGELOG.md").write_text("# Changes\n\n## Unreleased\n\n- One.\n\n## 0.1.0\n")
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "all"]):
        git(tmp_path, *words)
    return tmp_path


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=nobody", "-c", "user.email=nobody@example.org"]
    return subprocess.run(
        ["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True
    ).stdout


def release(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    for name, value in (("user.name", "nobody"), ("user.email", "nobody@example.org")):
        git(folder, "config", name, value)
    return subprocess.run([".ci/release", *words], cwd=folder, capture_output=True, text=True)


def test_a_release_is_a_commit_with_a_tag(
    checkout: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    done = release(checkout, "9.8.7")
    assert done.returncode == 0, done.stderr
    assert re.search(
        r"^## 9\.8\.7 \(\w+ \d{4}\)$", git(checkout, "show", "v9.8.7:CHANGELOG.md"), re.M
    )
    assert git(checkout, "show", "v9.8.7:omnihvd/version.py") == '__version__ = "9.8.7"\n'
    assert git(checkout, "show", "HEAD:omnihvd/version.py") == '__version__ = "9.8.8.dev0"\n'
    assert git(checkout, "status", "--porcelain") == ""
    messages = git(checkout, "log", "--format=%B%x00", "HEAD~2..").strip().strip("\0").split("\0")
    assert len(messages) == 2
    file = tmp_path_factory.mktemp("messages") / "message"
    for message in messages:  # else `make lint` fails for good
        file.write_text(message.lstrip())
        checked = subprocess.run([".ci/commits", file], cwd=ROOT, text=True, capture_output=True)
        assert checked.returncode == 0, checked.stdout
    again = release(checkout, "9.8.7")
    assert again.returncode == 2 and "there is a v9.8.7 already" in again.stderr


@pytest.mark.parametrize("version", ["", "v1.2.3", "1.2", "1.2.3; true"])
def test_no_release_of_another_form(checkout: Path, version: str) -> None:
    done = release(checkout, version)
    assert done.returncode == 2 and "such as 1.2.3" in done.stderr
    assert git(checkout, "tag") == ""


def test_no_release_of_what_is_not_committed(checkout: Path) -> None:
    (checkout / "more").write_text("more")
    done = release(checkout, "9.8.7")
    assert done.returncode == 2 and "not committed" in done.stderr and git(checkout, "tag") == ""


@pytest.mark.parametrize("refused", ["name it", "go on as"])
def test_a_release_that_a_hook_refuses_leaves_all_as_it_was(checkout: Path, refused: str) -> None:
    hook = checkout / ".git" / "hooks" / "commit-msg"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f'#!/bin/sh\n! grep "{refused}" "$1"\n')
    hook.chmod(0o700)
    before = git(checkout, "rev-parse", "HEAD")
    done = release(checkout, "9.8.7")
    assert done.returncode == 2 and f"release: {refused} 9.8." in done.stdout + done.stderr
    assert "the checkout is as it was: mend that, and run this again" in done.stderr
    assert git(checkout, "status", "--porcelain") == git(checkout, "tag") == ""
    assert git(checkout, "rev-parse", "HEAD") == before
