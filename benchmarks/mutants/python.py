"""Mutants of Python modules, by ast; what runs at import stays, as the server has imported all."""

from __future__ import annotations

import ast
import copy
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.mutants.sites import Site, where

SWITCH = "_omnihvd_mutant"
BOUNDS: dict[Any, Any] = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
RELATIONS: dict[Any, Any] = {
    **{ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is},
    **{ast.In: ast.NotIn, ast.NotIn: ast.In},
    **{ast.Lt: ast.Gt, ast.LtE: ast.GtE, ast.Gt: ast.Lt, ast.GtE: ast.LtE},
}
ARITHMETIC: dict[Any, Any] = {
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult},
    **{ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.Pow: ast.Mult},
    **{ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.BitAnd: ast.BitOr},
    **{ast.BitOr: ast.BitAnd, ast.BitXor: ast.BitAnd},
}
NAMES = {ast.And: "and", ast.Or: "or"}
Change = tuple[str, str, ast.AST]  # operator, for people, and what stands there then


def extents(data: bytes) -> Callable[[Any], tuple[int, int]]:
    """For a node of this module: the offsets of its first byte and behind its last."""
    lines = [0, *itertools.accumulate(map(len, data.splitlines(keepends=True)))]

    def of(node: Any) -> tuple[int, int]:
        start = lines[node.lineno - 1] + node.col_offset
        return start, lines[node.end_lineno - 1] + node.end_col_offset

    return of


def find(root: Path, names: list[str]) -> list[Site]:
    sites: list[Site] = []
    for name in names:
        if name.endswith(".py"):
            data = (root / name).read_bytes()
            extent, text = extents(data), data.decode("latin-1")
            for node, (operator, change, _) in _all(ast.parse(data)):
                start, end = extent(node)
                sites.append(Site(name, start, end, operator, change, "", type(node).__name__,
                                  *where(text, start)))  # fmt: skip
    return sites


def _all(tree: ast.Module) -> Iterator[tuple[Any, Change]]:
    """In a fixed order."""
    for top in ast.walk(tree):
        if isinstance(top, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for statement in top.body:
                yield from _below(statement)


def _below(node: ast.AST) -> Iterator[tuple[Any, Change]]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Assert)):
        return  # a function in a function has its own turn
    for change in changes(node):
        yield node, change
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "format_spec", "pattern"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _below(child)


def changes(node: ast.AST) -> list[Change]:
    result: list[Change] = []

    def add(operator: str, change: str, **fields: Any) -> None:
        other = copy.copy(node)
        for name, value in fields.items():
            setattr(other, name, value)
        result.append((operator, change, other))

    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        was = type(node.ops[0])
        for operator, table in (("bound", BOUNDS), ("relational", RELATIONS)):
            if was in table:
                change = f"{was.__name__} to {table[was].__name__}"
                add(operator, change, ops=[table[was]()])
    elif isinstance(node, (ast.BinOp, ast.AugAssign)) and type(node.op) in ARITHMETIC:
        now = ARITHMETIC[type(node.op)]
        text = isinstance(getattr(node, "left", None), (ast.JoinedStr, ast.Constant))
        if not (text and isinstance(node.op, (ast.Add, ast.Mod))):  # of strings
            add("arithmetic", f"{type(node.op).__name__} to {now.__name__}", op=now())
    elif isinstance(node, ast.BoolOp):
        other = ast.Or if isinstance(node.op, ast.And) else ast.And
        add("logical", f"{NAMES[type(node.op)]} to {NAMES[other]}", op=other())
    elif isinstance(node, (ast.If, ast.While, ast.IfExp)):
        add("logical", "negated", test=ast.UnaryOp(ast.Not(), node.test))
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        add("constant", f"{node.value} to {not node.value}", value=not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        add("constant", f"{node.value} to {node.value + 1}", value=node.value + 1)
    targets = getattr(node, "targets", [getattr(node, "target", None)])
    stores = all(isinstance(target, (ast.Attribute, ast.Subscript)) for target in targets)
    if isinstance(node, ast.AugAssign) or (isinstance(node, ast.Assign) and stores):
        result.append(("removed", "removed", ast.Pass()))
    if isinstance(node, (ast.Raise, ast.Expr)) and not isinstance(
        getattr(node, "value", None), ast.Constant
    ):
        result.append(("removed", "removed", ast.Pass()))
    return result


class _Switches(ast.NodeTransformer):
    def __init__(self, chosen: dict[int, list[tuple[int, Change]]]) -> None:
        self.chosen = chosen

    def visit(self, node: ast.AST) -> Any:
        plain = copy.deepcopy(node) if id(node) in self.chosen else None
        here = self.chosen.get(id(node), [])
        result = self.generic_visit(node)
        for number, (_, change, other) in here:
            # `other` has the children of `node`, which may have switches by now: take plain ones.
            mutated = next(o for _, c, o in changes(plain) if c == change) if plain else other
            ask = ast.Call(ast.Name(SWITCH, ast.Load()), [ast.Constant(number)], [])
            if isinstance(node, (ast.If, ast.While)):
                flipped = ast.UnaryOp(ast.Not(), result.test)
                result.test = ast.IfExp(ask, flipped, result.test)
            elif isinstance(node, ast.stmt):
                result = ast.If(ask, [mutated], [result])
            else:
                result = ast.IfExp(ask, mutated, result)
        return result


def rewrite(data: bytes, name: str, sites: list[tuple[int, Site]]) -> str:
    """The module with the mutants of these numbers."""
    tree, extent = ast.parse(data), extents(data)
    wanted = {(s.start, s.end, s.change): number for number, s in sites}
    chosen: dict[int, list[tuple[int, Change]]] = {}
    for node, change in _all(tree):
        number = wanted.pop((*extent(node), change[1]), None)
        if number is not None:
            chosen.setdefault(id(node), []).append((number, change))
    if wanted:
        raise SystemExit(f"no such site in {name}: {wanted}")
    _Switches(chosen).visit(tree)
    at = 1 if ast.get_docstring(tree) is not None else 0
    while isinstance(tree.body[at], ast.ImportFrom) and tree.body[at].module == "__future__":
        at += 1
    tree.body.insert(
        at, ast.ImportFrom("omnihvd.mutant_switch", [ast.alias("mutant", SWITCH)], level=0)
    )
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"
