"""A test quotes each message of the product's errors and warnings (.ci/messages lists them).

A test quotes a message if one of its strings has three words in a row that no other message has;
of a message without such words, its longest piece.
"""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.util
import re
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
WORDS = 3  # in a row


def load(path: Path) -> Any:
    loader = importlib.machinery.SourceFileLoader("messages", str(path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("messages", loader))
    sys.modules["messages"] = module
    loader.exec_module(module)
    return module


listed = load(ROOT / ".ci/messages")
MESSAGES = listed.messages()


def plain(text: str) -> str:
    """On one line, without what a pattern escapes."""
    return " ".join(text.replace("\\", "").split())


def strings_of(path: Path) -> list[str]:
    """The strings that a test may compare with; in Python, all but docstrings."""
    source = path.read_text()
    if path.suffix != ".py":
        return [plain(" ".join(re.findall(r'"((?:[^"\\\n]|\\.)*)"', source)))]
    tree = ast.parse(source)
    documents = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.FunctionDef, ast.ClassDef))
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    constants = (
        n for n in ast.walk(tree) if isinstance(n, ast.Constant) and id(n) not in documents
    )
    values = [
        n.value.decode("latin-1") if isinstance(n.value, bytes) else n.value for n in constants
    ]
    return [plain(value) for value in values if isinstance(value, str)]


@lru_cache(None)
def quotes() -> str:
    here = (Path(__file__), Path(__file__).with_name("test_remedies.py"))
    paths = [
        p for p in (ROOT / "tests").rglob("*") if p.suffix in (".py", ".c", ".cc") and p not in here
    ]
    return "\n".join(text for path in paths for text in strings_of(path))


def signs(message: Any) -> list[str]:
    """The pieces by which one knows a message: one is enough."""
    rows = []
    pieces = [plain(piece) for piece in message.pieces]
    others = [plain(m.text) for m in MESSAGES if plain(m.text) != plain(message.text)]
    for words in (piece.split() for piece in pieces):
        rows += [" ".join(words[i : i + WORDS]) for i in range(len(words) - WORDS + 1)]
    unique = [row for row in rows if not any(row in other for other in others)]
    return unique or [max(pieces, key=len)]


def is_quoted(message: Any) -> bool:
    return any(sign in quotes() for sign in signs(message))


KERNEL = "the kernel refuses, as none that tests run on does"
NCCL = "NCCL's stand-in fails in other ways"
DRIVER = "the driver's stand-in has all functions"
FAULTY = "only a faulty member sends it"
NEVER = "not reachable by callers that wait for their sums"
# The beginning of a message that no test raises, and why.
EXCEPTIONS = {
    ": see its message": "a rank fails alone while its hosts make parts: its memory is full",
    "this rank has left the group": NEVER,
    "no memory is left on": "the fault injection refuses memory, and looks for this message itself",
    "cannot give the XDP program a socket": KERNEL,
    "this kernel has no AF_XDP": KERNEL,
    "no socket of AF_XDP:": KERNEL,
    "AF_XDP: this kernel's rings": KERNEL,
    "another program has an AF_XDP socket": "needs a second program with AF_XDP",
    "no AF_XDP socket on": KERNEL,
    "AF_XDP: no memory for frames": KERNEL,
    "cannot send to a group from": KERNEL,
    "cannot add a job to the XDP program": KERNEL,
    "the kernel cannot run the XDP program": KERNEL,
    "the kernel refuses the XDP program": KERNEL,
    "cannot attach to interface": KERNEL,
    "too much to tell the other ranks": "2 GiB of settings",
    "ends the job (MPI_Abort), since": "a rank that MPI_Abort ends may not get its output through",
    "cannot find out which ranks run omnihvd": "MPI itself fails",
    "this NCCL has no ncclGroupSimulateEnd": NCCL,
    "a sum on this communicator has failed": NCCL,
    "the communicator was aborted": "the caller sees NCCL's code; the text goes to no log",
    "this NCCL has no ncclCommShrink": NCCL,
    "no CUDA driver:": DRIVER,
    "the CUDA driver has no function": DRIVER,
    "the CUDA driver cannot be initialized": DRIVER,
    "NCCL inside this host, or between those": NCCL,
    "a communicator that failed still uses its memory": NCCL,
    "cannot tell where omnihvd is installed": "the loader does not know its own library",
    "the kernels' sources are missing in": "an installation that has lost files",
    ": ncclGetUniqueId failed": NCCL,
    ": ncclCommInitRankConfig failed, or takes long": NCCL,
    "what did not fit a union's capacity was not summed": NCCL,
    "only libomnihvd_innetwork sums in this arithmetic": "the library is loaded for the setting",
    "a contribution to an aggregator of other ranks": FAULTY,
    "a result of what is not the group's aggregator": FAULTY,
    "UCX may keep file descriptors of": "a UCX that looks its functions up otherwise",
}
TEXTS = sorted({plain(message.text) for message in MESSAGES})


def exception_of(message: Any) -> str | None:
    return next((key for key in EXCEPTIONS if key in plain(message.text)), None)


@pytest.mark.parametrize("text", TEXTS)
def test_a_test_quotes_it(text: str) -> None:
    same = [message for message in MESSAGES if plain(message.text) == text]
    places = ", ".join(message.place for message in same)
    assert exception_of(same[0]) or is_quoted(same[0]), (
        f"{places}: no test quotes this message. Raise it in a test, and compare with one of "
        f"{signs(same[0])}"
    )


def test_exceptions_are_few_and_needed() -> None:
    assert len(EXCEPTIONS) <= 40
    for key in EXCEPTIONS:
        kept = [message for message in MESSAGES if key in plain(message.text)]
        assert kept, f"no message has {key!r} any more: remove the exception"
        assert not any(map(is_quoted, kept)), f"a test quotes {key!r}: remove the exception"


def test_what_counts_as_a_message() -> None:
    cpp = '// throw Error("no message")\nthrow Error("what is " + name + " of" " it");\n' + (
        'log(LogLevel::warning, "it takes ", seconds, " s and more");\nreturn "ok";\n'
        'OMNIHVD_INVARIANT(x); throw Broken("a bug it is");\nfail(std::string("no way to ") + why);'
    )
    assert [(line, message.text) for line, message in listed.of_cpp(cpp)] == [
        (2, "what is {} of it"),
        (3, "it takes {} s and more"),
        (4, "ok"),
        (6, "no way to {}"),
    ]
    python = 'raise ValueError(f"{a} is {b}: no" " number")\nlog.warning("%s is late", x)\nfail("")'
    assert [(line, message.text) for line, message in listed.of_python(python)] == [
        (1, "{} is {}: no number"),
        (2, "{} is late"),
    ]


def test_an_unquoted_message_is_found() -> None:
    made = listed.Message("x.cc:1", "quite unheard-of {} words", ("quite unheard-" + "of ", "x"))
    assert not is_quoted(made)
