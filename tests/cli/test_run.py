"""`python -m omnihvd script.py` is `python script.py`, but for the sums."""

from __future__ import annotations

import shutil
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
# Before anything is imported, as that would be in the namespace.
STATE = """
for _name in sorted(vars()):
    print(_name, repr(vars()[_name]).partition(" at 0x")[0], getattr(vars()[_name], "path", ""))
del _name
import sys, signal
print(sys.argv, sys.path, sys.flags, vars(sys.modules["__main__"]) is vars(), sys.gettrace())
print(signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGPIPE), sys.displayhook)
def greet(name: str) -> str: "Greets."
print(greet.__module__, greet.__annotations__, greet.__doc__)
count: int = 3
print(__annotations__)
"""
PROGRAMS = {
    "script": ["look.py", "-x", "1"],
    "script elsewhere": ["./kit/../kit/look.py"],
    "link": ["link.py"],
    "module": ["-m", "kit.look", "-x", "1"],
    "package": ["-m", "kit", "-c"],
    "code": ["-c", STATE, "-x", "-m"],
    "folder": ["kit", "-x"],
    "archive": ["kit.zip", "-x"],
    "no such module": ["-m", "kit.gone"],
    "no such code": ["-c", "import kit.gone"],
    "fails in a package": ["-m", "kit.fails"],
}
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


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("flags", [[], ["-I"]], ids=str)
def test_the_program_finds_all_as_under_python(
    tmp_path: Path, program: str, flags: list[str]
) -> None:
    kit = tmp_path / "kit"
    kit.mkdir()
    (kit / "__init__.py").touch()
    (kit / "fails.py").write_text("def fail(): raise KeyError('gone')\nfail()")
    for name in ("../look.py", "look.py", "__main__.py"):
        (kit / name).write_text(STATE)
    (tmp_path / "link.py").symlink_to(kit / "look.py")
    shutil.make_archive(str(kit), "zip", kit)
    plain = python(*flags, *PROGRAMS[program], cwd=tmp_path)
    begin = "import sys; sys.path.append(sys.argv.pop(1)); from omnihvd.cli import main; main()"
    words = ["-c", begin, str(Path(__file__).parents[2])] if flags else ["-m", "omnihvd"]
    under = python(*flags, *words, *PROGRAMS[program], cwd=tmp_path, OMNIHVD_LOG="error")
    omnihvds = f", '{Path(__file__).parents[2]}'" if flags else ""
    assert under.stdout.replace(f"{omnihvds}]", "]") == plain.stdout
    assert under.stderr == plain.stderr
    assert under.returncode == plain.returncode


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
    said = python("-c", "import omnihvd; print('done')", cwd=tmp_path, OMNIHVD_WAY="strem")
    assert (said.returncode, said.stdout) == (1, "")
    assert "OMNIHVD_WAY=strem" in said.stderr and said.stderr.count("\n") == 1
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
