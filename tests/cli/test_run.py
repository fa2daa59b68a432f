"""`python -m omnihvd script.py` is `python script.py`, but for the sums."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys
print(sys.argv, __file__, __name__, sys.path[0], __spec__, sys.modules["__main__"].__file__)
import pickle
class Thing: pass
pickle.loads(pickle.dumps(Thing()))
def fail(): raise KeyError("gone")
"""
ENDS = {
    "well": "",
    "exception": "fail()",
    "cause": "try: fail()\nexcept KeyError as e: raise ValueError('why') from e",
    "exit": "sys.exit(7)",
    "exit with text": "sys.exit('no more')",
    "interrupt": "raise KeyboardInterrupt",
    "syntax": "1 1",
}


def python(*words: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        env={"PATH": "/usr/bin", "PYTHONPATH": str(Path(__file__).parents[2]), **env},
    )


@pytest.mark.parametrize("end", ENDS)
def test_output_traceback_and_status_are_pythons_own(tmp_path: Path, end: str) -> None:
    (tmp_path / "script.py").write_text(SCRIPT + ENDS[end])
    plain = python("script.py", "-x", "1", cwd=tmp_path)
    under = python("-m", "omnihvd", "script.py", "-x", "1", cwd=tmp_path, OMNIHVD_LOG="error")
    assert under.stdout == plain.stdout
    assert under.stderr == plain.stderr
    assert under.returncode == plain.returncode


def test_a_modules_traceback_begins_with_the_module(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(SCRIPT + "fail()")
    said = python("-m", "omnihvd", "-m", "job", cwd=tmp_path)
    assert "runpy" not in said.stderr and "run.py" not in said.stderr
    assert said.stderr.count("File ") == 2 and "KeyError: 'gone'" in said.stderr


def test_a_script_that_sums_nothing_is_told(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("print('done')")
    said = python("-m", "omnihvd", "script.py", cwd=tmp_path)
    assert "no sum was taken over" in said.stderr and "neither Horovod nor" in said.stderr
    assert said.stderr.count("\n") == 1
    assert python("-c", "import omnihvd", cwd=tmp_path).stderr == ""


def test_a_wrong_setting_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("print('done')")
    said = python("-m", "omnihvd", "script.py", cwd=tmp_path, OMNIHVD_MIN_BITES="1")
    assert said.returncode == 2 and said.stdout == ""
    assert "OMNIHVD_MIN_BITES: did you mean OMNIHVD_MIN_BYTES? " in said.stderr
    assert said.stderr.count("\n") == 1
    (tmp_path / "script.py").write_text("import omnihvd, torch")
    said = python("script.py", cwd=tmp_path, OMNIHVD_BLOCK_SIZE="7", OMNIHVD_LOG="error")
    assert said.returncode == 1 and "OMNIHVD_BLOCK_SIZE=7" in said.stderr
    assert said.stderr.count("\n") == 1


def test_code_in_the_command(tmp_path: Path) -> None:
    code = "import sys; print(sys.argv, sys.path[0], __name__); sys.exit(3)"
    plain = python("-c", code, "-x", cwd=tmp_path)
    under = python("-m", "omnihvd", "-c", code, "-x", cwd=tmp_path, OMNIHVD_LOG="error")
    assert (under.stdout, under.stderr) == (plain.stdout, plain.stderr) and under.returncode == 3


@pytest.mark.parametrize("words", [[], ["-m", "omnihvd", "--report", "out"]], ids=str)
def test_one_process_needs_no_launcher(tmp_path: Path, words: list[str]) -> None:
    pytest.importorskip("horovod.torch")
    code = "import omnihvd, horovod.torch as hvd; hvd.init(); print(hvd.size())"
    (tmp_path / "script.py").write_text(code)
    said = python(*words, "script.py", cwd=tmp_path)
    assert (said.returncode, said.stdout) == (0, "1\n"), said.stderr
