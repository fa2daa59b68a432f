"""The fuzz targets: each takes its committed inputs, which are small."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ASIDE = ("support", "mutate")
TARGETS = sorted(path.stem for path in HERE.glob("*.cc") if path.stem not in ASIDE)


def can_link() -> bool:
    """Whether clang is here, with libFuzzer and the sanitizers."""
    program = 'extern "C" int LLVMFuzzerTestOneInput(const char*, unsigned long) { return 0; }'
    command = ["clang++", "-fsanitize=fuzzer,address,undefined", "-xc++", "-", "-o", "/dev/null"]
    if not shutil.which("clang++"):
        return False
    return subprocess.run(command, input=program, text=True, capture_output=True).returncode == 0


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
