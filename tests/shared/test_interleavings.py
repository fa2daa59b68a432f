"""The steps of small sums in all interleavings, and their code under the thread sanitizer and on
ARM; and faults that these must find."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
COMPILER = shutil.which("c++")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The answer of interleavings.cc to each of its cases."""
    if COMPILER is None:
        pytest.skip("needs a C++ compiler")
    program = tmp_path_factory.mktemp("interleavings") / "interleavings"
    flags = [
        "-std=c++17",
        "-O2",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-I",
        HERE.parents[1] / "omnihvd/csrc",
    ]
    subprocess.run(
        [COMPILER, *flags, HERE / "interleavings.cc", "-o", program], check=True, timeout=120
    )
    said = subprocess.run([program], check=True, timeout=240, capture_output=True, text=True)
    return dict(line.split(": ", 1) for line in said.stdout.splitlines())


def test_all_interleavings_are_well(found: dict[str, str]) -> None:
    for ranks in ("", " of three"):
        for how in ("polls", "sleeps"):
            name = f"{how}, of three" if ranks else how
            for case in (name, f"{how}, shares{ranks}"):
                states = re.fullmatch(r"well: (\d+) states", found[case])
                assert states and int(states[1]) > 20, (case, found[case])


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("one buffer", "a race"),
        ("relaxed stamps", "a race"),
        ("awaits no given", "a race"),
        ("awaits no added", "a sum of other elements"),
        ("stamps before work", "a race"),
        ("a weak bell", "ranks sleep for ever"),
        ("weak stamps under a bell", "ranks sleep for ever"),
        ("weak stamps under a weak bell", "ranks sleep for ever"),
        ("looks before it stamps", "ranks sleep for ever"),
        ("reads rung late", "ranks sleep for ever"),
        ("announces late", "ranks sleep for ever"),
        ("wakes nobody", "ranks sleep for ever"),
    ],
)
def test_a_fault_is_found(found: dict[str, str], fault: str, said: str) -> None:
    assert found[fault] == said


def _threads(folder: Path, compiler: str, *flags: str) -> Path:
    """threads.cc, compiled."""
    source = HERE.parents[1] / "omnihvd/csrc"
    command = [compiler, "-std=c++17", "-O1", "-g", "-pthread", *flags, "-I", source]
    command += [HERE / "threads.cc", source / "numeric/block_ops_portable.cc"]
    subprocess.run([*command, "-o", folder / "threads"], check=True, timeout=120)
    return folder / "threads"


@pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("relaxed", [False, True])
def test_the_thread_sanitizer_finds_relaxed_loads_and_nothing_else(
    relaxed: bool, tmp_path: Path
) -> None:
    flags = ["-fsanitize=thread"] + ["-DRELAXED"] * relaxed
    try:
        program = _threads(tmp_path, str(COMPILER), *flags)
    except subprocess.CalledProcessError:
        pytest.skip("the compiler has no thread sanitizer")
    # Address space layout of recent kernels leaves the sanitizer no room for its shadow.
    command = ["setarch", "-R", "env", "TSAN_OPTIONS=halt_on_error=1", program, "3", "100"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ("ThreadSanitizer: data race" in ended.stderr) == relaxed, ended.stderr
    assert relaxed or (ended.returncode == 0 and ended.stdout == "well\n"), ended


def test_sums_on_arm(tmp_path: Path) -> None:
    compiler, emulator = shutil.which("aarch64-linux-gnu-g++"), shutil.which("qemu-aarch64")
    if compiler is None or emulator is None:
        pytest.skip("needs aarch64-linux-gnu-g++ and qemu-aarch64")
    program = _threads(tmp_path, compiler, "-static")
    for ranks in ("2", "3"):
        command = [emulator, program, ranks, "100"]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert ended.stdout == "well\n", ended
