"""Committed results are of code that the history has, or benchmarks/results/lost.txt lists them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
FOLDERS = ("omnihvd", "kernels")


def git(*words: str, said: str = "") -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, input=said, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"no history of git: {done.stderr.strip()}")
    return done.stdout


class History:
    def __init__(self) -> None:
        if git("rev-parse", "--is-shallow-repository").strip() == "true":
            pytest.skip("the history is not all here (a shallow clone)")
        self.commits = set(git("rev-list", "HEAD").split())
        names = [f"{commit}:{folder}" for commit in self.commits for folder in FOLDERS]
        self.trees = set(
            git("cat-file", "--batch-check=%(objectname)", said="\n".join(names)).split()
        )

    def has(self, about: dict[str, Any]) -> bool:
        trees = about.get("trees", {})
        same = all(trees.get(folder) in self.trees for folder in FOLDERS)
        return about["commit"] in self.commits or (same and not about.get("dirty"))


def sources(content: Any) -> Iterator[dict[str, Any]]:
    """The commits that a result names, or its parts and entries; "-" where none is named.

    An entry of a list may have the commit of what is around it. It has none where the list's other
    entries have commits of their own, and nothing around them has one.
    """
    found = list(named(content))
    yield from found or [{"commit": "-"}]


def named(content: Any, above: bool = False) -> Iterator[dict[str, Any]]:
    """above: something around this part names a commit for it."""
    if isinstance(content, list):
        entries = [entry for entry in content if isinstance(entry, (dict, list))]
        some = any("commit" in entry for entry in entries)
        for entry in entries:
            if some and not above and "commit" not in entry:
                yield {"commit": "-"}
            yield from named(entry, above)
        return
    if "commit" in content:
        yield content
    parts = [part for part in content.values() if isinstance(part, (dict, list))]
    above = above or any("commit" in part for part in [content, *parts])
    for part in parts:
        yield from named(part, above)


def lost(history: History) -> set[str]:
    return {
        f"{path.relative_to(RESULTS)} {about['commit'][:12]}"
        for path in RESULTS.rglob("*.json")
        for about in sources(json.loads(path.read_text()))
        if not history.has(about)
    }


def test_results_that_nobody_can_measure_again_are_listed() -> None:
    lines = (RESULTS / "lost.txt").read_text().splitlines()
    listed = {line for line in lines if line and not line.startswith("#")}
    found = lost(History())
    assert found - listed == set(), "measure these again, or list them in lost.txt"
    assert listed - found == set(), "these are not lost: take them out of lost.txt"


def test_a_result_is_found_by_its_trees_or_its_commit() -> None:
    history = History()
    (head,) = git("rev-parse", "HEAD").split()
    trees = {folder: git("rev-parse", f"HEAD:{folder}").strip() for folder in FOLDERS}
    gone = "0" * 40
    assert history.has({"commit": head})
    assert history.has({"commit": gone, "trees": trees, "dirty": False})
    assert not history.has({"commit": gone, "trees": trees, "dirty": True})
    assert not history.has({"commit": gone, "trees": {**trees, "kernels": gone}, "dirty": False})
    assert not history.has({"commit": gone})
    inside = {"parts": {"a": {"about": {"commit": "1"}}, "b": {"commit": "2"}}, "commit": "0"}
    assert sorted(about["commit"] for about in sources(inside)) == ["0", "1", "2"]
    assert [about["commit"] for about in sources([{"commit": "1"}, {}])] == ["1", "-"]
    assert [about["commit"] for about in sources({"points": []})] == ["-"]
    for entries in ({"runs": [{"commit": "1"}, {}]}, {"a": {"runs": [{}, {"commit": "1"}]}}):
        assert sorted(about["commit"] for about in sources(entries)) == ["-", "1"]
    assert [about["commit"] for about in sources({"commit": "1", "runs": [{}]})] == ["1"]
    kept = {"about": {"commit": "2"}, "results": [{"commit": "1"}, {}]}
    assert sorted(about["commit"] for about in sources(kept)) == ["1", "2"]
