"""The documents as a site: `make docs`. Sources are the repository's own files, as they are."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

from pygments.lexers.special import TextLexer

ROOT = Path(__file__).resolve().parents[2]

project = "omnihvd"
version = re.search(r'"(.*)"', (ROOT / "omnihvd/version.py").read_text()).group(1)  # type: ignore[union-attr]
extensions = ["myst_parser", "sphinx.ext.autodoc"]
root_doc = "docs/start"
include_patterns = ["*.md", "docs/*.md", "examples/*.md"]
include_patterns += ["benchmarks/*.md", "benchmarks/results/*.md"]
html_theme = "furo"
html_title = f"omnihvd {version}"
html_static_path = ["static"]
html_css_files = ["tables.css"]
myst_heading_anchors = 4
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_mock_imports = [
    "tensorflow",
    "horovod",
    "cupy",
]  # they take long to import, or are not there


def plain(app: Any, what: str, name: str, of: Any, options: Any, lines: list[str]) -> None:
    """Docstrings are plain text, with code in single backticks, and blocks of code indented."""
    text = inspect.cleandoc("\n".join(lines))
    made = []
    for block in re.split(r"\n\s*\n", text):
        columns = re.search(r"^\w+  +\w", block, re.M)
        if block.startswith("    ") or columns:
            block = "\n".join("    " + line for line in block.split("\n")) if columns else block
            made.append("::\n\n" + block)
        else:
            block = re.sub(r"`([^`]+)`", r"``\1``", inspect.cleandoc(block))
            made.append(re.sub(r"(?<![`\w])\*+(?=\w)|(?<=\w)_(?=\W|$)", r"\\\g<0>", block))
    lines[:] = [*"\n\n".join(made).split("\n"), ""]


def to_start(app: Any, exception: Exception | None) -> None:
    """The site's own address shows the first page."""
    if exception is None:
        url = f"{root_doc}.html"
        refresh = f'<meta http-equiv="refresh" content="0; url={url}">'
        page = f'<!doctype html>{refresh}<a href="{url}">omnihvd</a>'
        (Path(app.outdir) / "index.html").write_text(page + "\n")


def setup(app: Any) -> None:
    app.add_lexer("mermaid", TextLexer)  # GitHub draws the picture; the site shows its text
    app.connect("autodoc-process-docstring", plain)
    app.connect("build-finished", to_start)
