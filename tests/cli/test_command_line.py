"""The command itself: what it says of itself, without the engine, and of mistakes."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

import pytest

import omnihvd
from benchmarks.bench import arguments
from benchmarks.bench import command as bench

# As the installed script does it; afterwards, whether the engine was loaded.
MAIN = """
import sys
sys.argv[0] = "/bin/omnihvd"
from omnihvd.cli import main
try:
    status = main(sys.argv[1:])
except SystemExit as end:
    status = end.code
assert "omnihvd._engine" not in sys.modules, "the engine was loaded"
sys.exit(status)
"""


def command(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", MAIN, *words],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PATH": "/usr/bin", "PYTHONPATH": str(Path(omnihvd.__file__).parents[1]), **env},
    )


@pytest.mark.parametrize(
    "words",
    [["--help"], ["--version"], ["bench", "--help"], ["check", "--help"], ["lib-path", "--help"]],
    ids=" ".join,
)
def test_help_needs_no_engine_and_no_right_settings(words: list[str]) -> None:
    said = command(*words, OMNIHVD_NO_SUCH="1", OMNIHVD_MIN_BYTES="-")
    assert said.returncode == 0 and said.stderr == ""
    assert "omnihvd" in said.stdout


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["help"], "omnihvd top [HOST ...]"),
        (["help", "trace"], "usage: omnihvd trace"),
        (["bench", "--help"], "usage: omnihvd bench [OPTION ...] -- LAUNCHER"),
        (["--report", "--help"], "--every N"),
        (["--report", "out", "--help"], "--rate RATE"),
    ],
)
def test_help_is_where_people_look_for_it(words: list[str], shown: str) -> None:
    said = command(*words)
    assert said.returncode == 0 and shown in said.stdout and said.stderr == ""


def test_lib_path_and_readme_say_the_same() -> None:
    wanted = "mpirun -x LD_PRELOAD=$(omnihvd lib-path mpi)"
    assert wanted in command("lib-path", "--help", COLUMNS="300").stdout
    assert wanted in (Path(omnihvd.__file__).parents[1] / "README.md").read_text()


def test_output_that_is_not_read_to_its_end() -> None:
    readable, writable = os.pipe()
    os.close(readable)
    words = [sys.executable, "-m", "omnihvd", "check", "--settings"]
    done = subprocess.run(words, stdout=writable, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(writable)
    assert (done.returncode, done.stderr) == (141, "")


def test_version() -> None:
    assert command("--version").stdout == f"omnihvd {omnihvd.__version__}\n"


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("chek", "did you mean check?"),
        ("agregator", "did you mean aggregator?"),
        ("trian.py", "neither a file nor one of check,"),
        ("simulate", "in a clone, python -m simulator"),
        ("--verison", "no option --verison"),
    ],
)
def test_a_misspelt_command_is_one_line_with_a_hint(word: str, hint: str) -> None:
    said = command(word)
    assert said.returncode == 2 and hint in said.stderr and said.stderr.count("\n") == 1


@pytest.mark.parametrize("library", ["mpi", "nccl"])
def test_lib_path_is_what_ld_preload_wants(library: str) -> None:
    path = Path(command("lib-path", library).stdout.strip())
    assert path.name == f"libomnihvd_{library}.so"
    assert path.exists() or library == "mpi"


@pytest.mark.parametrize(
    "words",
    [
        "--densities 1.5",
        "--densities -0.1",
        "--densities nan",
        "--densities half",
        "--rate fast",
        "--rate 0gbit",
        "--rate 10g",
        "--delay 1",
        "--bytes 10XB",
        "--bytes 0",
        "--bytes 1.2.3",
        "--ranks 0",
    ],
)
def test_bench_refuses_what_it_cannot_measure(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        bench.parser().parse_args(words.split())
    said = capsys.readouterr().err
    assert words.split()[0] in said and words.split()[1] in said.splitlines()[-1]


def test_bench_measures_dtypes_that_the_engine_has() -> None:
    assert arguments.dtype("float16") == "float16"
    with pytest.raises(argparse.ArgumentTypeError, match=r"not one of .*float32.*: float31"):
        arguments.dtype("float31")


def test_bench_takes_sizes_and_rates_as_people_write_them() -> None:
    sizes = {"10MB": 10e6, "64KiB": 65536, "1e8": 1e8, "1.5gb": 1.5e9, "4096": 4096, "2Mib": 2**21}
    assert {text: arguments.size(text) for text in sizes} == sizes
    assert arguments.rate("2.5Gbit") == "2.5gbit" and arguments.rate("100Mbps") == "100mbit"
    assert arguments.rate("10Gbit/s") == "10gbit" and arguments.rate("None") == "none"
    assert arguments.delay("500us") == "500us"
