"""The fuzz targets: each takes its committed inputs, which are small."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TARGETS = sorted(path.stem for path in HERE.glob("*.cc"))


def can_link() -> bool:
    """Whether clang is here, with libFuzzer and the sanitizers."""
    program = 'extern "C" int LLVMFuzzerTestOneInput(const char*, unsigned long) { return 0; }'
    command = ["clang++", "-fsanitize=fuzzer,address,undefined", "-xc++", "-", "-o", "/dev/null"]
    if not shutil.which("clang++"):
        return False
    return subprocess.run(command, input=program, text=True, capture_output=True).returncode == 0


def command() -> Any:
    """.ci/fuzz, as a module."""
    loader = importlib.machinery.SourceFileLoader("fuzz_command", str(ROOT / ".ci" / "fuzz"))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


needs_clang = pytest.mark.skipif(not can_link(), reason="no clang++ with libFuzzer")


def test_each_target_has_inputs_and_all_are_small() -> None:
    assert len(TARGETS) >= 15
    assert sorted(path.name for path in (HERE / "corpus").iterdir()) == TARGETS
    sizes = [path.stat().st_size for path in HERE.glob("corpus/*/*")]
    assert sum(sizes) < 60_000
    assert all(any((HERE / "corpus" / target).iterdir()) for target in TARGETS)


@needs_clang
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_committed_inputs_pass() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / ".ci" / "fuzz", "--replay"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == TARGETS


def script(folder: Path, text: str) -> Path:
    program = folder / "fuzz_it"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o700)
    return program


@pytest.mark.parametrize(("end", "status"), [("exit 3", 3), ("kill -9 $$", -9)])
def test_a_program_that_ends_without_a_word_has_failed(
    tmp_path: Path, end: str, status: int
) -> None:
    fuzz, program = command(), script(tmp_path, end)
    assert fuzz.run(program, [tmp_path], [], 60) == (0, f"status {status}")
    ran, said = fuzz.run_copies(program, [tmp_path], 100)
    assert ran == 0 and said.startswith(f"status {status}; again: UBSAN_OPTIONS=abort_on_error=1:")
    assert f" {program} 100 " in said and said.endswith(f" {tmp_path}")  # with its seed
    assert fuzz.run_copies(script(tmp_path, "exit 0"), [tmp_path], 100) == (100, "")


UNDEFINED = """
#include <climits>
#include <cstddef>
#include <cstdint>
extern "C" int LLVMFuzzerTestOneInput(const uint8_t*, size_t size) {
  volatile int most = INT_MAX;
  most = most + static_cast<int>(size);
  return 0;
}
"""


@needs_clang
def test_undefined_behaviour_leaves_its_input(tmp_path: Path) -> None:
    (tmp_path / "it.cc").write_text(UNDEFINED)
    program, csrc = tmp_path / "fuzz_it", ROOT / "omnihvd" / "csrc"
    compile_it = [
        "clang++",
        "-std=c++17",
        "-O1",
        "-fsanitize=undefined",
        "-fno-sanitize-recover=all",
    ]
    sources = [tmp_path / "it.cc", HERE / "linked" / "mutate.cc", "-o", program]
    subprocess.run([*compile_it, f"-I{csrc}", *sources], check=True, timeout=100)
    ran, said = command().run_copies(program, [HERE / "corpus" / "integers"], 100)
    assert ran == 0 and "signed integer overflow" in said and "status 1; again: " in said
    assert "the input is in the folder, as failed-*" in said
    (kept,) = tmp_path.glob("failed-fuzz_it-*")
    assert kept.stat().st_size and f" 100 {kept.name.rpartition('-')[2]} " in said  # the seed


@needs_clang
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_changed_copies_of_inputs_pass(tmp_path: Path) -> None:
    notes = tmp_path / "notes.json"
    words = ["--seconds", "0", "--copies", "2000", "--json", notes, "integers", "headers"]
    done = subprocess.run(
        [sys.executable, ROOT / ".ci" / "fuzz", *words], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.split()[:3] for line in done.stdout.splitlines()] == [
        ["integers", "2,000", "copies"],
        ["headers", "2,000", "copies"],
    ]
    assert json.loads(notes.read_text())["targets"]["headers"]["copies"] == 2000
