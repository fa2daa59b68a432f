"""Which other processes of its host a rank takes for alive, whoever runs them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from _engine_tests import transport

AS_NOBODY = """
import os, sys
from _engine_tests import transport  # what nobody may not read
os.setgid(65534)
os.setuid(65534)
pid, start, ended = map(int, sys.argv[1:])
assert not os.path.exists(f"/proc/{pid}/stat"), "/proc does not hide it"
assert transport.is_alive(pid, start), "a process that /proc hides has not ended"
assert not transport.is_alive(ended, start)
"""


def start_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def test_alive_ended_or_another_of_that_number() -> None:
    start = start_of(os.getpid())
    assert transport.is_alive(os.getpid(), start)
    assert not transport.is_alive(os.getpid(), start + 1)
    child = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    start = start_of(child.pid)
    assert transport.is_alive(child.pid, start)
    child.communicate(b"\n")
    assert not transport.is_alive(child.pid, start)


@pytest.mark.skipif(os.getuid() != 0 or not shutil.which("unshare"), reason="needs root")
def test_other_users_that_proc_hides_are_not_taken_for_dead() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    words = [
        sys.executable,
        "-c",
        AS_NOBODY,
        *map(str, (os.getpid(), start_of(os.getpid()), ended.pid)),
    ]
    path = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [
            "unshare",
            "--mount",
            "sh",
            "-c",
            'mount -o remount,hidepid=2 /proc && exec "$@"',
            "sh",
            *words,
        ],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
    )
    if done.stderr.startswith(("mount:", "unshare:")):
        pytest.skip(f"cannot hide processes here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
