"""An index of packages shows README.md with links that work there, and the URLs of the project."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from email import message_from_string
from email.message import Message
from pathlib import Path

ROOT = Path(__file__).parents[2]
URL = "https://example.org/omnihvd"


def metadata(folder: Path, url: str) -> Message:
    command = [sys.executable, "setup.py", "-q", "egg_info", "--egg-base", folder]
    env = {**os.environ, "OMNIHVD_PROJECT_URL": url}
    subprocess.run(command, cwd=ROOT, env=env, check=True, timeout=60)
    return message_from_string((folder / "omnihvd.egg-info/PKG-INFO").read_text())


def test_readme_has_absolute_links_to_files_that_are_there(tmp_path: Path) -> None:
    told = metadata(tmp_path, URL + "/")
    links = re.findall(r"\]\(([^)]+)\)", str(told.get_payload()))
    mine = [link for link in links if link.startswith(URL)]
    assert len(mine) > 10 and all("://" in link for link in links)
    for link in mine:
        folder, _, path = link.removeprefix(URL + "/").split("/", 2)
        assert folder == ("raw" if path.endswith(".png") else "blob")
        assert (ROOT / path.partition("#")[0]).is_file(), link
    assert f"Repository, {URL}" in (told.get_all("Project-URL") or [])
    assert told["Description-Content-Type"] == "text/markdown"


def test_without_an_address_none_is_made_up(tmp_path: Path) -> None:
    told = metadata(tmp_path, "")
    assert told.get_all("Project-URL") is None
    assert "](docs/start.md)" in str(told.get_payload())


def test_a_source_distribution_has_all_sources(tmp_path: Path) -> None:
    metadata(tmp_path, "")
    listed = set((tmp_path / "omnihvd.egg-info/SOURCES.txt").read_text().splitlines())
    sources = (ROOT / "omnihvd/csrc").rglob("*")
    assert not {str(path.relative_to(ROOT)) for path in sources if path.is_file()} - listed
