"""Mutants of C++. libclang finds the sites; a switch in the text chooses one at run time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from clang.cindex import Config, Cursor, CursorKind, Index, TranslationUnit, TypeKind

from benchmarks.mutants.sites import CXX, Site, where

K = CursorKind
BOUNDS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
RELATIONS = {"==": "!=", "!=": "==", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
ARITHMETIC = {"+": "-", "-": "+", "*": "/", "/": "*", "%": "*", "<<": ">>", ">>": "<<"}
ARITHMETIC |= {"&": "|", "|": "&", "^": "&"}
ARITHMETIC |= {f"{a}=": f"{b}=" for a, b in ARITHMETIC.items()}
LOGIC = {"&&": "||", "||": "&&"}
# These are evaluated while compiling or loading.
SKIPPED = {K.STATIC_ASSERT, K.ENUM_DECL, K.TEMPLATE_NON_TYPE_PARAMETER, K.ALIGNED_ATTR}
CONDITIONS = {K.IF_STMT, K.WHILE_STMT, K.CONDITIONAL_OPERATOR}
EFFECTS = {K.CALL_EXPR, K.COMPOUND_ASSIGNMENT_OPERATOR, K.CXX_THROW_EXPR}
BODIES = {K.IF_STMT, K.WHILE_STMT, K.FOR_STMT, K.CXX_FOR_RANGE_STMT}
FUNCTIONS = {K.FUNCTION_DECL, K.CXX_METHOD, K.CONSTRUCTOR, K.FUNCTION_TEMPLATE, K.DESTRUCTOR}


class File:
    def __init__(self, root: Path, name: str) -> None:
        self.name = name
        self.text = (root / name).read_bytes().decode("latin-1")  # a character for each byte
        self.macros: set[tuple[int, int]] = set()

    def in_macro(self, start: int, end: int) -> bool:
        """A site may contain a macro but not lie in one, or begin in one."""
        return any(a <= start < b or a < end < b for a, b in self.macros)

    def site(self, node: Cursor, operator: str, change: str, mutated: str, form: str) -> Site:
        start, end = extent(node)
        return Site(self.name, start, end, operator, change, mutated, form,
                    *where(self.text, start))  # fmt: skip


def extent(node: Cursor) -> tuple[int, int]:
    return node.extent.start.offset, node.extent.end.offset


def find(root: Path, names: list[str], arguments: dict[str, list[str]]) -> list[Site]:
    """All sites of the files. `arguments`: of the compiler, for each file that is compiled."""
    Config.set_compatibility_check(False)
    index = Index.create()
    files = {str(root / name): File(root, name) for name in names if name.startswith(CXX)}
    found: set[Site] = set()
    for source, flags in arguments.items():
        unit = index.parse(source, flags, options=TranslationUnit.PARSE_DETAILED_PROCESSING_RECORD)
        errors = [d for d in unit.diagnostics if d.severity >= d.Error]
        if errors:
            raise SystemExit(f"libclang cannot read {source}: {errors[0]}")
        nodes = [(files[str(n.location.file)], n) for n in unit.cursor.get_children()
                 if n.location.file and str(n.location.file) in files]  # fmt: skip
        for file, node in nodes:
            if node.kind == K.MACRO_INSTANTIATION:
                file.macros.add(extent(node))
        for file, node in nodes:
            if not node.kind.is_preprocessing():
                found.update(s for s in walk(file, node, None)
                             if not file.in_macro(s.start, s.end))  # fmt: skip
    return list(found)


def walk(file: File, node: Cursor, parent: Cursor | None) -> Iterator[Site]:
    children = list(node.get_children())
    start, end = extent(node)
    words = file.text[start:end]
    if node.kind in SKIPPED or (node.kind == K.CASE_STMT and children):
        children = children[1:] if node.kind == K.CASE_STMT else []
    if node.kind in (K.VAR_DECL, K.FIELD_DECL):
        outside = parent is None or not parent.kind.is_statement()
        if re.match(r"(inline |static )*(constexpr|static) ", words) or (
            outside and node.kind == K.VAR_DECL
        ):
            return
    if node.kind in FUNCTIONS:
        body = next((c for c in children if c.kind == K.COMPOUND_STMT), None)
        head = words[: extent(body)[0] - start] if body else words
        if "constexpr" in head or body is None:
            return
    if node.kind == K.IF_STMT and words.startswith("if constexpr"):
        children = children[1:]
    elif node.kind in CONDITIONS and children and children[0].kind.is_expression():
        yield file.site(children[0], "logical", "negated", "", "condition")
    yield from removed(file, node, children)
    yield from operators(file, node, children)
    for child in children:
        yield from walk(file, child, node)


def removed(file: File, node: Cursor, children: list[Cursor]) -> Iterator[Site]:
    statements = children if node.kind == K.COMPOUND_STMT else []
    if node.kind in BODIES and len(children) > 1:  # a body without braces
        statements = children[1:] if node.kind == K.IF_STMT else children[-1:]
    for child in statements:
        inner = child
        while inner.kind == K.UNEXPOSED_EXPR:
            below = list(inner.get_children())
            if len(below) != 1:
                break
            inner = below[0]
        start, end = extent(child)
        assigns = inner.kind == K.BINARY_OPERATOR and sign(file, inner) == "="
        counts = inner.kind == K.UNARY_OPERATOR and re.search(r"\+\+|--", file.text[start:end])
        if assigns or counts or inner.kind in EFFECTS:
            yield file.site(child, "removed", "removed", "void()", "statement")


def sign(file: File, node: Cursor) -> str:
    left, right = node.get_children()
    return file.text[extent(left)[1] : extent(right)[0]].strip()


def operators(file: File, node: Cursor, children: list[Cursor]) -> Iterator[Site]:
    start, end = extent(node)
    words = file.text[start:end]
    if node.kind == K.INTEGER_LITERAL and re.fullmatch(r"(0x)?[0-9a-fA-F']+[uUlL]*", words):
        mutated = "1" if words == "0" else f"{words} + 1"
        yield file.site(node, "constant", f"{words} to {mutated}", mutated, "expression")
    elif node.kind == K.CXX_BOOL_LITERAL_EXPR and words in ("true", "false"):
        other = "false" if words == "true" else "true"
        yield file.site(node, "constant", f"{words} to {other}", other, "expression")
    elif node.kind == K.CALL_EXPR and (found := re.match(r"std::(min|max)\b", words)):
        other = {"min": "max", "max": "min"}[found[1]]
        mutated = f"std::{other}{words[found.end() :]}"
        yield file.site(node, "bound", f"{found[1]} to {other}", mutated, "expression")
    elif node.kind in (K.BINARY_OPERATOR, K.COMPOUND_ASSIGNMENT_OPERATOR) and len(children) == 2:
        yield from binary(file, node, *children)


NUMBERS = range(TypeKind.BOOL.value, TypeKind.LONGDOUBLE.value + 1)


def binary(file: File, node: Cursor, left: Cursor, right: Cursor) -> Iterator[Site]:
    was = sign(file, node)
    first, last = extent(left), extent(right)
    before, after = file.text[first[0] : first[1]], file.text[last[0] : last[1]]
    kinds = (left.type.get_canonical().kind, right.type.get_canonical().kind)
    is_number = [k.value in NUMBERS or k == TypeKind.UNEXPOSED for k in kinds]
    for table, operator in ((BOUNDS, "bound"), (RELATIONS, "relational"), (LOGIC, "logical"),
                            (ARITHMETIC, "arithmetic")):  # fmt: skip
        if was not in table:
            continue
        if table is ARITHMETIC and not (is_number[1] and (is_number[0] or was in "+-+=-=")):
            continue
        now = table[was]
        mutated = f"{before} {now} {after}"
        yield file.site(node, operator, f"{was} to {now}", mutated, "expression")
    if was in ("+", "-") and right.kind == K.INTEGER_LITERAL:
        change = f"{was} {after} dropped"
        yield file.site(node, "arithmetic", change, before, "expression")


def rewrite(text: str, sites: list[tuple[int, Site]]) -> str:
    """The file with the mutants of these numbers. `text`: a character for each byte."""
    if not sites:
        return text
    ordered = sorted(sites, key=lambda s: (s[1].start, -s[1].end, s[0]))
    head = "" if text.startswith('#include "base/mutant') else '#include "base/mutant_switch.h"\n'
    return head + _range(text, 0, len(text), ordered)


def _range(text: str, start: int, end: int, inside: list[tuple[int, Site]]) -> str:
    pieces, at = [], start
    while inside:
        begin, stop = inside[0][1].start, inside[0][1].end
        nested = [s for s in inside if s[1].start < stop]
        same = [s for s in nested if (s[1].start, s[1].end) == (begin, stop)]
        whole = _range(text, begin, stop, [s for s in nested if s not in same])
        for number, site in same:
            whole = _switched(number, site, whole)
        pieces += [text[at:begin], whole]
        at, inside = stop, inside[len(nested) :]
    return "".join(pieces) + text[at:end]


def _switched(number: int, site: Site, whole: str) -> str:
    if site.form == "condition":
        return f"(omnihvd_mutant({number}) != static_cast<bool>({whole}))"
    if site.form == "statement":
        return f"(omnihvd_mutant({number}) ? void() : void({whole}))"
    return f"(omnihvd_mutant({number}) ? ({site.mutated}) : ({whole}))"
