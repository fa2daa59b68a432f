"""HACKING.md's plugin: its commands build it, a job sums by it, another build is refused."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from jobs import run

from omnihvd import engine

ROOT = Path(__file__).parents[2]


EXAMPLE = "examples/plugin/chunks.cc"


def compile(folder: Path, source: str = EXAMPLE) -> Path:
    """By HACKING.md's commands."""
    if shutil.which("c++") is None:
        pytest.skip("needs a C++ compiler")
    text = (ROOT / "HACKING.md").read_text()
    recipe = re.search(r"^    ID=.*?-o libchunks.so$", text, re.MULTILINE | re.DOTALL)
    assert recipe
    script = recipe[0].replace("-o libchunks.so", f"-o {folder}/libchunks.so")
    script = script.replace(EXAMPLE, source)
    subprocess.run(["bash", "-ec", script], cwd=ROOT, check=True, timeout=120)
    return folder / "libchunks.so"


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile(tmp_path_factory.mktemp("plugin"))


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_job_sums_by_a_plugin(build: Path, ranks: int) -> None:
    env = {"OMNIHVD_PLUGIN": str(build), "OMNIHVD_WAY": "chunks"}
    for ended in run("plugin.py", ranks, env=env):
        assert "all well" in ended.output


def test_a_plugin_that_not_all_ranks_have_is_refused(build: Path) -> None:
    env = {"OMNIHVD_PLUGIN": str(build), "OMNIHVD_WAY": "chunks"}
    own = {1: {"OMNIHVD_PLUGIN": "", "OMNIHVD_WAY": "auto"}}
    ended = run("plugin.py", 2, env=env, own=own, check=False)
    for one in ended:
        assert one.returncode != 0
        assert "OMNIHVD_PLUGIN is none on rank 1 " in one.output, one.output
        assert ", which all" not in one.output and ": set it alike everywhere" in one.output


def test_a_plugin_of_another_build_is_refused(build: Path, tmp_path: Path) -> None:
    other = tmp_path / "libother.so"
    content = build.read_bytes()
    id = engine.build_id().encode()
    assert content.count(id) == 1
    other.write_bytes(content.replace(id, b"0" * len(id)))
    (ended,) = run("plugin.py", 1, env={"OMNIHVD_PLUGIN": str(other)}, check=False)
    assert f"{other} is of build 000" in ended.output, ended.output
    assert "build it again, with the headers of this omnihvd" in ended.output


def test_the_name_is_a_word_of_the_setting(build: Path) -> None:
    env = {**os.environ, "OMNIHVD_PLUGIN": str(build)}
    assert (
        "chunks"
        in subprocess.run(
            ["python", "-m", "omnihvd", "check", "--settings"],
            env=env,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout
    )


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (["stream"], "the name 'stream' is taken: give the algorithm another"),
        (["chunks", "more"], "one process takes one plugin's algorithm, and has 'chunks'"),
    ],
)
def test_names_that_are_taken_are_refused(names: list[str], why: str, tmp_path: Path) -> None:
    example = (ROOT / EXAMPLE).read_text()
    begin = example.index('  register_algorithm("chunks"')
    end = example.index("  });", begin) + len("  });\n")
    rows = "".join(example[begin:end].replace("chunks", name) for name in names)
    source = tmp_path / "plugin.cc"
    source.write_text(example[:begin] + rows + example[end:])
    library = compile(tmp_path, str(source))
    (ended,) = run("plugin.py", 1, env={"OMNIHVD_PLUGIN": str(library)}, check=False)
    assert why in ended.output, ended.output
