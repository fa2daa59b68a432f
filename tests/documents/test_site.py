"""The documents and the API become a site, in which no link, heading or docstring is broken."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("sphinx", reason="make docs installs it, on Python 3.11 and newer")
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going"]
    done = subprocess.run(
        [*command, "-c", ROOT / "docs/site", "-d", out / "doctrees", ROOT, out / "html"],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return out / "html"


def test_every_document_is_a_page_that_is_reached_from_the_first(site: Path) -> None:
    first = (site / "docs/start.html").read_text()
    for document in sorted((ROOT / "docs").glob("*.md")):
        assert (site / f"docs/{document.stem}.html").exists()
        assert f'href="{document.stem}.html"' in first or document.stem == "start", document


def test_the_site_begins_with_the_first_page(site: Path) -> None:
    (url,) = re.findall(r"url=([^\"]+)", (site / "index.html").read_text())
    assert (site / url).samefile(site / "docs/start.html")
    assert (site / "_static/tables.css").exists()


@pytest.mark.parametrize("name", ["OmniReduce.block_topk", "stats", "torch.HookState"])
def test_the_api_has_docstrings(site: Path, name: str) -> None:
    page = (site / "docs/api.html").read_text()
    found = re.search(rf'id="omnihvd\.(\w+\.)*{re.escape(name)}".*?<dd><p>\w+', page, re.S)
    assert found, name
