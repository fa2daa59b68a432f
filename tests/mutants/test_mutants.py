"""The machine that plants bugs: its sites, and the text that has them behind a switch."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

sys.path.append(str(Path(__file__).parents[2]))
from benchmarks.mutants import python, tree
from benchmarks.mutants.__main__ import answered
from benchmarks.mutants.coverage import Coverage
from benchmarks.mutants.sites import Site, files, numbered, part_of, sample

CODE = b'''from __future__ import annotations

LIMIT = 3  # evaluated at import, so it stays


def most(a, b):
    """Not a site: 7."""
    if a < b and b > 0:
        return b + 1
    return a
'''


def loaded(tmp_path: Path, chosen: int, monkeypatch: pytest.MonkeyPatch) -> tuple[ModuleType, list]:
    (tmp_path / "code.py").write_bytes(CODE)
    sites = numbered(python.find(tmp_path, ["code.py"]))
    text = python.rewrite(CODE, "code.py", list(enumerate(sites)))
    switch = ModuleType("omnihvd.mutant_switch")
    switch.mutant = lambda number: number == chosen  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "omnihvd.mutant_switch", switch)
    module = ModuleType("code_with_mutants")
    exec(compile(text, "code.py", "exec"), module.__dict__)
    return module, sites


def test_each_python_mutant_is_behind_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, sites = loaded(tmp_path, -1, monkeypatch)
    assert plain.LIMIT == 3 and plain.most(1, 2) == 3 and plain.most(2, 1) == 2
    changes = {site.change: number for number, site in enumerate(sites)}
    assert set(changes) == {
        *("negated", "and to or", "Lt to LtE", "Lt to Gt", "Gt to GtE", "Gt to Lt"),
        *("0 to 1", "Add to Sub", "1 to 2"),
    }
    assert loaded(tmp_path, changes["Add to Sub"], monkeypatch)[0].most(1, 2) == 1
    assert loaded(tmp_path, changes["1 to 2"], monkeypatch)[0].most(1, 2) == 4
    assert loaded(tmp_path, changes["negated"], monkeypatch)[0].most(1, 2) == 1
    assert loaded(tmp_path, changes["and to or"], monkeypatch)[0].most(2, 1) == 2
    assert loaded(tmp_path, changes["Lt to LtE"], monkeypatch)[0].most(2, 2) == 3
    assert all(part.line > 7 for part in sites)


def test_a_sample_stays_when_another_line_changes() -> None:
    sites = [
        Site("omnihvd/csrc/protocol/a.cc", n, n + 1, "bound", "< to <=", "", "", n, f"line {n}", 0)
        for n in range(100)
    ]
    first = sample(sites, 1, 20)
    moved = [site._replace(start=site.start + 9, line=site.line + 1) for site in sites[1:]]
    again = {site.source for site in sample(moved, 1, 20)}
    assert len({site.source for site in first} - again) <= 1
    assert {site.source for site in sample(sites, 2, 20)} != {site.source for site in first}


def test_each_file_is_of_a_part() -> None:
    names = files()
    assert {part_of(name) for name in names} == {
        *("protocol", "engine", "algorithms", "codecs", "compressors")
    }
    assert part_of("omnihvd/compression/torch_codecs.py") == "codecs"
    with pytest.raises(ValueError, match="is of no part"):
        part_of("omnihvd/csrc/base/log.cc")


def test_cxx_mutants_nest_behind_their_numbers(tmp_path: Path) -> None:
    pytest.importorskip("clang.cindex")
    from benchmarks.mutants import cxx

    path = tmp_path / "omnihvd" / "csrc" / "code.cc"
    path.parent.mkdir(parents=True)
    path.write_text(
        "constexpr int kLimit = 1 + 2;\n#define TWICE(x) ((x) * 2)\n"
        "int f(int a, int b) {\n  if (a < b + 1) b += TWICE(a);\n  return b;\n}\n"
    )
    found = numbered(cxx.find(tmp_path, ["omnihvd/csrc/code.cc"], {str(path): ["-std=c++17"]}))
    assert [site.change for site in found] == [
        *("< to <=", "< to >", "negated", "+ 1 dropped", "+ to -", "1 to 1 + 1"),
        *("+= to -=", "removed"),
    ]
    text = cxx.rewrite(path.read_text(), list(enumerate(found)))
    assert text.startswith('#include "base/mutant_switch.h"\n')
    assert "omnihvd_mutant(0) ? (a <= b + 1) : (a < " in text
    assert "(omnihvd_mutant(5) ? (1 + 1) : (1))" in text
    assert "(omnihvd_mutant(7) ? void() : void(" in text
    assert cxx.rewrite(path.read_text(), []) == path.read_text()


def test_the_switch_module_is_python() -> None:
    path = Path(python.__file__).parent / "switch" / "mutant_switch.py"
    assert {node.name for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.FunctionDef)} == {"choose", "mutant"}  # fmt: skip


def test_a_sample_ends_where_the_first_mutant_has_no_answer() -> None:
    sites = [
        Site("omnihvd/csrc/protocol/a.cc", n, n + 1, "bound", "< to <=", "", "", n, f"line {n}", 0)
        for n in range(5)
    ]
    answers = {site.key(): "failed" for n, site in enumerate(sites) if n != 3}
    dropped = {sites[1].key()}
    assert answered(sites, answers, dropped) == sites[:3]
    assert answered(sites, answers, {sites[3].key()}) == sites
    del answers[sites[1].key()]
    assert answered(sites, answers, dropped) == sites[:3]
    assert answered(sites, answers, set()) == sites[:1]


def test_coverage_is_known_until_the_test_changes(tmp_path: Path) -> None:
    test = tmp_path / "test_a.py"
    test.write_text("one")
    item = SimpleNamespace(path=test, nodeid="test_a.py::test")
    file = tmp_path / "coverage.jsonl"
    assert Coverage(file).get(item) is None
    entry = {"left_out": "", "seconds": 0.5, "reached": [1, 7]}
    Coverage(file).put(item, entry)
    assert entry.items() <= Coverage(file).get(item).items()  # type: ignore[union-attr]
    test.write_text("two")
    assert Coverage(file).get(item) is None


def test_fuzz_programs_of_an_earlier_tree_are_built_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, compiled = tree.Tree(tmp_path), []
    for name in ("one", "linked/support"):
        copy.write(f"tests/fuzz/{name}.cc", b"// its headers number the mutants\n")
    old = copy.root / "build" / "fuzz" / "one"
    old.parent.mkdir(parents=True)
    old.touch()

    def run(words: list[str], **_: object) -> SimpleNamespace:
        compiled.append(words)
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(tree.subprocess, "run", run)
    assert copy.build_fuzz() == ""
    assert len(compiled) == 2 and f"{old}.o" in compiled[0] and str(old) in compiled[1]


def test_a_tree_has_another_key_when_the_code_changes(tmp_path: Path) -> None:
    copy = tree.Tree(tmp_path)
    for name in ("omnihvd/a.py", "tests/protocol/test_a.py", "tests/protocol/help.py", "docs/a.md"):
        copy.write(name, b"one")
    first = copy.key()
    copy.write("tests/protocol/test_a.py", b"two")
    copy.write("docs/a.md", b"two")
    assert copy.key() == first
    copy.write("tests/protocol/help.py", b"two")
    second = copy.key()
    copy.write("omnihvd/a.py", b"two")
    assert len({first, second, copy.key()}) == 3
