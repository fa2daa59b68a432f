"""clang compiles what gcc does, without warnings."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from multiprocessing.pool import ThreadPool
from pathlib import Path

import pytest

COMMANDS = Path(__file__).parents[2] / "build" / "engine" / "compile_commands.json"
CLANG = shutil.which("clang++")
OF_GCC_ALONE = ("-flto", "-fno-fat-lto-objects")


def syntax_check(command: str, source: str) -> list[str]:
    """Clang's command where gcc had this one."""
    words = [word for word in shlex.split(command) if not word.startswith(OF_GCC_ALONE)]
    options = words[
        1 + next(i for i, w in enumerate(words) if w.endswith("++")) : words.index("-o")
    ]
    return [str(CLANG), *options, "-fsyntax-only", "-Werror", source]


def problems(entry: dict[str, str]) -> str:
    check = syntax_check(entry["command"], entry["file"])
    done = subprocess.run(check, cwd=entry["directory"], capture_output=True, text=True)
    return done.stderr[-4000:] if done.returncode else ""


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(
    not CLANG or not COMMANDS.exists(), reason="no clang++, or no engine built here"
)
def test_clang_takes_all_translation_units() -> None:
    entries = json.loads(COMMANDS.read_text())
    assert len(entries) > 100
    with ThreadPool(os.cpu_count()) as pool:
        said = pool.map(problems, entries)
    assert not any(said), "".join(said)
