"""Scripts of benchmarks/ find the project's own modules, whoever starts them from where."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
FILES = [*BENCHMARKS.glob("*.py"), *BENCHMARKS.glob("evaluation/*.py")]
SCRIPTS = [path for path in sorted(FILES) if re.search("__main__|^main\\(", path.read_text(), re.M)]


def begins(tree: ast.Module, wanted: str) -> int | None:
    """The first line that has this module or expression; None: no line has."""
    lines = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            said = [str(node.module)]
        elif isinstance(node, ast.Import):
            said = [alias.name for alias in node.names]
        else:
            said = [ast.unparse(node)] if isinstance(node, ast.Attribute) else []
        if any(name.split(".")[: wanted.count(".") + 1] == wanted.split(".") for name in said):
            lines.append(node.lineno)
    return min(lines, default=None)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_has_the_projects_folder_before_it_imports_from_it(script: Path) -> None:
    """Python looks in the script's own folder, and horovodrun and sudo pass on no PYTHONPATH."""
    tree = ast.parse(script.read_text())
    imported, added = begins(tree, "benchmarks"), begins(tree, "sys.path")
    assert imported is None or (added is not None and added < imported)


def test_the_scripts_are_found() -> None:
    assert {"cycle.py", "idle.py", "papers.py", "run.py"} <= {path.name for path in SCRIPTS}
