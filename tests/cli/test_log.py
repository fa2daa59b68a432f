"""Where omnihvd's messages go: to stderr, and to what a job has given Python's logging."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import omnihvd

WARNS = "import logging, sys, omnihvd.log\n{}\nomnihvd.log.logger.warning('look out')"


def said(begin: str) -> str:
    command = [sys.executable, "-c", WARNS.format(begin)]
    env = {"PATH": "/usr/bin", "PYTHONPATH": str(Path(omnihvd.__file__).parents[1])}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=env, check=True)
    return done.stdout + done.stderr


def test_a_job_without_logging_reads_them_with_host_and_level() -> None:
    line = said("")
    assert line.startswith("[omnihvd warning ") and line.endswith("] look out\n")
    assert line.count("\n") == 1


def test_a_jobs_own_console_has_them_once_and_in_its_format() -> None:
    for stream in ("stderr", "stdout"):
        begin = f"logging.basicConfig(format='job: %(name)s %(message)s', stream=sys.{stream})"
        assert said(begin) == "job: omnihvd look out\n"


def test_a_jobs_console_for_errors_alone_hides_no_warning() -> None:
    begin = "logging.basicConfig(); logging.getLogger().handlers[0].setLevel('ERROR')"
    assert "[omnihvd warning " in said(begin)


def test_a_jobs_file_has_them_too(tmp_path: Path) -> None:
    line = said(f"logging.basicConfig(filename={str(tmp_path / 'log')!r}, level='ERROR')")
    assert line.startswith("[omnihvd warning ")
    assert (tmp_path / "log").read_text() == "WARNING:omnihvd:look out\n"
