"""Reads the PTX that NVRTC makes of the kernels: as much of its language as that has."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Union

WIDTHS = {"pred": 1, "b8": 1, "u8": 1, "s8": 1, "b16": 2, "u16": 2, "s16": 2, "b32": 4, "u32": 4,
          "s32": 4, "f32": 4, "b64": 8, "u64": 8, "s64": 8, "f64": 8}  # fmt: skip


@dataclass(frozen=True)
class Register:
    name: str


@dataclass(frozen=True)
class Symbol:
    name: str


@dataclass(frozen=True)
class Place:
    """[base + offset]"""

    base: Register | Symbol
    offset: int


# An immediate number is an int: of a floating-point one, its bits.
Operand = Union[Register, Symbol, Place, int, "tuple[Any, ...]"]


@dataclass(frozen=True)
class Instruction:
    parts: tuple[str, ...]  # of the name: ("ld", "global", "u32")
    operands: tuple[Operand, ...]
    guard: str | None  # a predicate's register
    negated: bool
    line: int

    @property
    def type(self) -> str:
        return self.parts[-1]


@dataclass
class Entry:
    """A kernel."""

    name: str
    parameters: dict[str, tuple[int, int]] = field(default_factory=dict)  # offset, bytes
    parameter_bytes: int = 0
    threads: int = 0
    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    shared: dict[str, int] = field(default_factory=dict)  # offsets
    shared_bytes: int = 0


_ENTRY = re.compile(r"\.visible \.entry (\w+)\((.*?)\)(.*?)\{(.*?)^\}", re.DOTALL | re.MULTILINE)
_PARAMETER = re.compile(r"\.param (?:\.align (\d+) )?\.(\w+)\s+(\w+)(?:\[(\d+)\])?")
_SHARED = re.compile(r"\.shared \.align (\d+) \.(\w+) (\w+)(?:\[(\d+)\])?;")
_STATEMENT = re.compile(r"(?:@(!?)(%p\d+)\s+)?([a-z][\w.:]*)\s*(.*)", re.DOTALL)
_TOKEN = re.compile(r"[{}\[\]|,+]|[-%$\w.]+")
_IGNORED = (".reg", ".pragma", ".shared", ".loc")


def parse(text: str) -> dict[str, Entry]:
    """The kernels of a module, by name. ValueError: something in it is not known here."""
    text = re.sub(r"//[^\n]*", lambda _: "", text)
    outside = _ENTRY.sub("", text)
    entries = {}
    for found in _ENTRY.finditer(text):
        name, parameters, options, body = found.groups()
        entry = entries[name] = Entry(name)
        threads = re.search(r"\.maxntid (\d+), 1, 1", options)
        entry.threads = int(threads.group(1)) if threads else 0
        for align, kind, parameter, length in _PARAMETER.findall(parameters):
            width = WIDTHS[kind]
            at = _round_up(entry.parameter_bytes, int(align or width))
            size = width * int(length or 1)
            entry.parameters[parameter] = at, size
            entry.parameter_bytes = at + size
        for align, kind, variable, length in _SHARED.findall(outside + body):
            at = _round_up(entry.shared_bytes, int(align))
            entry.shared[variable] = at
            entry.shared_bytes = at + WIDTHS[kind] * int(length or 1)
        _read_body(body, entry, text.count("\n", 0, found.start(4)))
    return entries


def _round_up(n: int, to: int) -> int:
    return -(-n // to) * to


def _read_body(body: str, entry: Entry, line: int) -> None:
    for row in body.split("\n"):
        line += 1
        for statement in row.split(";"):
            statement = statement.strip()
            label = re.match(r"(\$\w+):\s*", statement)
            if label:
                entry.labels[label.group(1)] = len(entry.instructions)
                statement = statement[label.end() :]
            if statement and not statement.startswith(_IGNORED):
                entry.instructions.append(_instruction(statement, line))


def _instruction(statement: str, line: int) -> Instruction:
    found = _STATEMENT.fullmatch(statement)
    if not found:
        raise ValueError(f"line {line} is not known: {statement}")
    negated, guard, name, rest = found.groups()
    tokens = _TOKEN.findall(rest)
    if "".join(tokens) != re.sub(r"\s", "", rest):
        raise ValueError(f"line {line} is not known: {statement}")
    operands = []
    while tokens:
        operands.append(_operand(tokens))
        if tokens and tokens.pop(0) not in (",", "|"):
            raise ValueError(f"line {line} is not known: {statement}")
    return Instruction(tuple(name.split(".")), tuple(operands), guard, bool(negated), line)


def _operand(tokens: list[str]) -> Operand:
    token = tokens.pop(0)
    if token == "{":
        parts = []
        while True:
            parts.append(_operand(tokens))
            if tokens.pop(0) == "}":
                return tuple(parts)
    if token == "[":
        base = _operand(tokens)
        offset = 0
        if tokens.pop(0) == "+":
            offset = int(tokens.pop(0), 0)
            tokens.pop(0)
        assert isinstance(base, (Register, Symbol))
        return Place(base, offset)
    if token.startswith("%"):
        return Register(token)
    if re.fullmatch(r"0[fd][0-9A-Fa-f]+", token):
        return int(token[2:], 16)
    if re.fullmatch(r"-?(0x[0-9a-fA-F]+|\d+)", token):
        return int(token, 0)
    return Symbol(token)
