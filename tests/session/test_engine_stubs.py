"""The types of the engine's Python module (omnihvd/_engine/*.pyi) are those of what is compiled:
the names, and the names and defaults of arguments."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from types import ModuleType
from typing import Any, Optional

import pytest

from omnihvd import _engine

STUBS = Path(__file__).parents[2] / "omnihvd" / "_engine"
MODULES = {name: value for name, value in vars(_engine).items() if isinstance(value, ModuleType)}
ONLY_TYPES = {"Allgather", "Library", "ScatterLibrary"}
SETTING = re.compile(r"Settings\.(?!__init__$)")  # one is of any name and type in the stub
# Each overload of a function: its arguments, and whether they have a default; None: no function.
Members = dict[str, Optional[list[list[tuple[str, bool]]]]]


def in_stub(nodes: list[ast.stmt], prefix: str = "") -> Members:
    members: Members = {}
    for node in nodes:
        if isinstance(node, ast.ClassDef) and node.name not in ONLY_TYPES:
            members[prefix + node.name] = None
            members.update(in_stub(node.body, f"{prefix}{node.name}."))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            members[prefix + node.target.id] = None
        elif isinstance(node, ast.FunctionDef):
            decorators = {d.id for d in node.decorator_list if isinstance(d, ast.Name)}
            if "property" in decorators:
                members[prefix + node.name] = None
                continue
            names, defaults = node.args.args, len(node.args.defaults)
            required = len(names) - defaults
            overloads = members.setdefault(prefix + node.name, [])
            assert overloads is not None
            overloads.append([(arg.arg, i >= required) for i, arg in enumerate(names)])
    return members


def compiled(module: ModuleType | type, prefix: str = "") -> Members:
    if hasattr(module, "__members__"):  # an enumeration, which has more than these
        return {prefix + name: None for name in module.__members__}
    members: Members = {}
    for name, value in vars(module).items():
        if isinstance(value, type):
            members[prefix + name] = None
            members.update(compiled(value, f"{prefix}{name}."))
        elif name == "__init__" or not name.startswith("_"):
            overloads = signatures(value)
            if name != "__init__" or overloads:
                members[prefix + name] = overloads
    return members


def signatures(function: Any) -> list[list[tuple[str, bool]]] | None:
    """As pybind11's docstring says."""
    if not callable(function):
        return None
    found = []
    for line in (function.__doc__ or "").splitlines():
        if match := re.fullmatch(r"(?:\d+\. )?\w+\((.*)\) -> .*", line):
            words = re.split(r", (?=\w+: )", match[1]) if match[1] else []
            found.append([(word.split(":")[0], " = " in word) for word in words])
    return found


@pytest.mark.parametrize("name", sorted(MODULES))
def test_the_types_are_those_of_what_is_compiled(name: str) -> None:
    stub = in_stub(ast.parse((STUBS / f"{name}.pyi").read_text()).body)
    real = compiled(MODULES[name])
    for members in (stub, real):
        for setting in filter(SETTING.match, list(members)):
            del members[setting]
    assert stub == real


def test_each_module_has_its_types() -> None:
    assert {file.stem for file in STUBS.glob("*.pyi")} == {*MODULES, "__init__"}
