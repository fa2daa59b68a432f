"""The package's modules import each other in one direction only, and hide none of Python's own."""

from __future__ import annotations

import ast
import re
import sys
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]
ENGINE = "omnihvd._engine"  # compiled


def modules() -> dict[str, Path]:
    files = sorted((ROOT / "omnihvd").rglob("*.py"))
    names = [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files]
    return {name.removesuffix(".__init__"): file for name, file in zip(names, files)}


def test_no_circles() -> None:
    known = modules()
    graph: dict[str, set[str]] = {}
    for name, file in known.items():
        graph[name] = set()
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                wanted = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                submodules = [f"{node.module}.{alias.name}" for alias in node.names]
                wanted = [m if m in known or m == ENGINE else str(node.module) for m in submodules]
            else:
                continue
            graph[name].update(m for m in wanted if m in known and m != name)
    assert "omnihvd.intercept.notices" in graph["omnihvd.intercept.install"]
    list(TopologicalSorter(graph).static_order())  # or it names the circle


def names_of(file: Path) -> set[str]:
    """The names at a module's top."""
    found: set[str] = set()
    for node in ast.parse(file.read_text()).body:
        for part in ast.walk(node):
            if isinstance(part, (ast.FunctionDef, ast.ClassDef)):
                found.add(part.name)
            elif isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                found.add(part.id)
            elif isinstance(part, (ast.Import, ast.ImportFrom)):
                found.update(alias.asname or alias.name.split(".")[0] for alias in part.names)
    return found


def test_what_benchmarks_import_of_each_other_is_there() -> None:
    """Most of them run only when somebody measures."""
    folder, seen = ROOT / "benchmarks", 0
    for file in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("bench"):
                continue
            path = ROOT / str(node.module).replace(".", "/")
            for alias in node.names:
                seen += 1
                if (path / f"{alias.name}.py").exists() or (path / alias.name).is_dir():
                    continue
                module = path.with_suffix(".py") if not path.is_dir() else path / "__init__.py"
                assert alias.name in names_of(module), f"{file.name}: {node.module}.{alias.name}"
    assert seen > 20


def test_no_script_hides_a_module_of_pythons() -> None:
    folders = [ROOT / name for name in ("benchmarks", "examples", "tests")]  # some are on sys.path
    scripts = {file.stem for folder in folders for file in folder.rglob("*.py")}
    assert not scripts & sys.stdlib_module_names


def test_where_to_change_what_names_files_that_are_there() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    section = text.split("## Where to change what")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (?!to change|-)(.*) \|$", section, re.M)
    assert len(rows) >= 9
    for row in rows:
        what, where = row.split(" | ")
        files = re.findall(r"`([\w/.]+)`", where)
        assert 1 <= len(files) <= (4 if "dtype" in what else 3), row
        assert all((ROOT / "omnihvd" / file).exists() for file in files), row
    for file in re.findall(r"`([\w/.]+)`", section.rsplit("\n|", 1)[1].split("\n\n", 1)[1]):
        assert (ROOT / "omnihvd" / file).exists() or (ROOT / file).exists(), file


def test_types_of_the_engine_have_names_of_their_own() -> None:
    """If two types in a namespace have one name, the linker takes either one's destructor."""
    found: dict[tuple[str, str], list[str]] = {}
    for header in (ROOT / "omnihvd" / "csrc").rglob("*.h"):
        text = header.read_text()
        space = re.search(r"^namespace ([\w:]+) {", text, re.M)
        for name in re.findall(r"^(?:class|struct) (\w+)(?: final)?(?: :.*)? {", text, re.M):
            found.setdefault((space[1] if space else "", name), []).append(header.name)
    assert ("omnihvd", "Agreement") in found
    assert not {name: headers for name, headers in found.items() if len(headers) > 1}
