"""`omnihvd top`: what it shows, other hosts, and processes that mean harm."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from launch import ENVIRONMENT, STREAM

from benchmarks.bench.lab import Lab
from omnihvd.observe import answers, top, watchable
from omnihvd.observe.answers import Figures
from omnihvd.observe.other_hosts import OtherHost

HERE = Path(__file__).parent / "on_ranks"


def figures(now: float, calls: int, last: dict[str, int]) -> Figures:
    way = {"calls": calls, "bytes": 10_000_000 * calls, "seconds": 0.0}
    counts = {"ways": {"stream": way}, "passed": {}}
    rows = {"dense_bytes": 0, "union_bytes": 0}
    numbers = {"bytes_sent": calls, "library_bytes": 0, "ring_bytes": 4 * calls}
    numbers |= {"blocks": 10 * calls, "nonzero_blocks": calls, "result_blocks": calls}
    process = {
        "host": "h0",
        "hosts": [],
        "pid": 7,
        "rank": 0,
        "ranks": 2,
        "script": "train.py",
        "begun": 0.0,
        "now": now,
    }
    return {**process, "stats": {**counts, "sparse": rows, **numbers}, "last_ranks": last}


def test_top_shows_what_happened_since_the_last_look() -> None:
    before, now = figures(10.0, 100, {"1": 90, "0": 10}), figures(12.0, 120, {"1": 91, "0": 19})
    (row,) = top.rows({("h0", 7): now}, {("h0", 7): before})
    shown = dict(zip(top.HEADER, row))
    assert (shown["sums/s"], shown["MB/s summed"], shown["of a ring"]) == ("10.0", "100.0", "25.0%")
    assert (shown["not zero"], shown["waits for"]) == ("10.0%", "rank 0 (90%)")
    assert top.rows({7: before}, {7: before})[0][5:] == ["0.0", "0.0", "0.0"] + ["-"] * 4


def test_processes_of_containers_that_share_a_network_may_have_one_number(tmp_path: Path) -> None:
    """As if another container's process had this one's number."""
    program = (
        "import os, socket; from omnihvd.observe import watchable\n"
        "taken = socket.socket(socket.AF_UNIX)\n"
        "taken.bind(f'\\0{watchable.PREFIX}{os.getuid()}-{os.getpid()}')\n"
        "watchable.serve(); print(os.getpid(), flush=True); input()"
    )
    command = [sys.executable, "-c", program]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin and process.stdout
        pid = int(process.stdout.readline())
        seen = [found["pid"] for found in answers.here().processes]
        process.stdin.close()
    assert process.returncode is not None and pid in seen


@contextlib.contextmanager
def impostor(answer: bytes, pid: int, endless: bool = False) -> Iterator[None]:
    """Somebody who has bound the name of a process of this user's. endless: without an end."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"\0{watchable.PREFIX}{os.getuid()}-{pid}")
        server.listen()

        def run() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection, contextlib.suppress(OSError):
                    connection.sendall(answer)
                    while endless:
                        connection.sendall(b" " * (1 << 16))

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        yield
        server.shutdown(socket.SHUT_RDWR)
        thread.join(20)


GOOD = figures(12.0, 120, {"1": 1})
ANSWERS = {
    "a list": b"[]",
    "no JSON": b"{",
    "keys are missing": b'{"pid": 1}',
    "nested": b"[" * 100_000,
    "no number": json.dumps({**GOOD, "now": float("nan")}).encode(),
    "endless": json.dumps(GOOD).encode(),
}


@pytest.mark.parametrize("case", ANSWERS)
def test_what_is_no_answer_is_said_to_be_none(case: str) -> None:
    with impostor(ANSWERS[case], 4_000_000_001, endless=case == "endless"):
        seen = answers.here()
    (problem,) = [p for p in seen.problems if "4000000001" in p]
    assert "its answer" in problem
    assert 7 not in [f["pid"] for f in seen.processes]


def test_who_does_not_answer_is_named_and_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "PATIENCE_S", 0.2)
    with contextlib.ExitStack() as stack:
        for number in range(70):  # more than are asked at a time
            server = stack.enter_context(socket.socket(socket.AF_UNIX))
            server.bind(f"\0{watchable.PREFIX}{os.getuid()}-{4_000_000_100 + number}")
            server.listen()
        problems = [p for p in answers.here().problems if "process 40000001" in p]
    assert len(problems) == 70 and all(p.endswith("does not answer") for p in problems)


def test_hostile_words_are_shown_and_not_obeyed(capsys: pytest.CaptureFixture[str]) -> None:
    words = {"script": "[red]\x1b]0;owned\x07[/]", "host": "h\x9b2J", "hosts": ["-oProxyCommand=x"]}
    mine = answers.fitting({**GOOD, **words}, answers.FORM)
    seen = answers.Seen([mine], [])
    assert top.hosts_of(seen) == set() and top.notes(seen, []) == []
    from rich.console import Console

    shown = top.rows(top.by_process(seen.processes), {})
    Console(width=200).print(top._table(shown, ["why: [/nothing]\x1b[2J"]))
    said = capsys.readouterr().out
    assert "[red]?]0;owned?[/]" in said and "[/nothing]?[2J" in said
    assert "\x1b" not in said and "\x9b" not in said


def test_totals_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    with impostor(json.dumps(GOOD).encode(), 4_000_000_002):
        assert top.main(["--once", "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    calls = {f["pid"]: f["stats"]["ways"]["stream"]["calls"] for f in json.loads(line)["processes"]}
    assert calls[7] == 120


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
def test_top_sees_the_ranks_of_other_hosts() -> None:
    with Lab(2, rate=None) as lab:
        words = [sys.executable, str(HERE / "on_hosts.py")]
        env = {**ENVIRONMENT, **STREAM, "PYTHONPATH": os.pathsep.join(sys.path)}
        said = str(lab.mpirun(words, env=env, timeout=60, stdout=subprocess.PIPE).stdout)
    alone, all_ = said.split("all:")
    assert "0 of 2" in alone and "1 of 2" not in alone
    assert "ranks on other hosts, too: omnihvd top --all, or h1" in alone
    rows = [line.split()[:5] for line in all_.splitlines() if "on_hosts.py" in line]
    assert [row[1:] for row in rows] == [[r, "of", "2", f"h{r}"] for r in "01"]
    assert "gone: no host gone" in all_ and "other hosts, too" not in all_


SSH = """#!/bin/sh
while [ "$1" = -o ]; do shift 2; done
[ "$1" = -- ] || exit 9; shift
case $1 in mute) exec sleep 60;; esac
echo Welcome to $1; shift; exec sh -c "$*"
"""


def test_other_hosts_are_asked_while_somebody_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By an ssh that stays on this host."""
    (tmp_path / "ssh").write_text(SSH)
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    here, mute = OtherHost("here", 0.1), OtherHost("mute", 0.1)
    with impostor(json.dumps(GOOD).encode(), 4_000_000_004):
        for _ in range(2):
            seen = here.answer(time.monotonic() + 30)
            assert 7 in [f["pid"] for f in seen.processes] and seen.problems == []
            assert mute.answer(0) == ([], ["mute: no answer yet"])
    for other in (here, mute):
        other.close()
        assert other.ssh.poll() is not None


def test_what_ssh_says_last_is_why_there_is_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ssh").write_text("#!/bin/sh\necho no route >&2; exit 255")
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    away = OtherHost("away", 0.1)
    assert away.answer(time.monotonic() + 30) == ([], ["away: no route"])
    away.close()


@pytest.mark.skipif(os.getuid() != 0, reason="becomes another user")
def test_other_users_get_no_answer() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        assert watchable.may_ask(ours)
    with socket.socket(socket.AF_UNIX) as server:
        name = f"\0omnihvd-test-{os.getpid()}"
        server.bind(name)
        server.listen()
        child = os.fork()
        if child == 0:
            os.setuid(65534)
            with socket.socket(socket.AF_UNIX) as asking:
                asking.connect(name)
                asking.recv(1)
            os._exit(0)
        connection, _ = server.accept()
        with connection:
            assert not watchable.may_ask(connection)
        assert os.waitpid(child, 0)[1] == 0


@pytest.mark.skipif(os.getuid() != 0, reason="becomes another user")
def test_who_has_taken_a_name_of_this_users_is_not_believed() -> None:
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        os.setuid(65534)
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(f"\0{watchable.PREFIX}0-4000000003")
            server.listen()
            os.write(writable, b"!")
            while True:  # who else looks at this host meanwhile may ask, too
                with contextlib.suppress(OSError), server.accept()[0] as connection:
                    connection.recv(1)
    try:
        os.read(readable, 1)
        said = "process 4000000003 (user 0): user 65534 has taken its socket's name"
        assert said in answers.here().problems
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(readable)
        os.close(writable)


@pytest.mark.skipif(os.getuid() != 0, reason="becomes another user")
def test_root_connects_to_no_host_that_another_users_process_names() -> None:
    """`--all` is of root's own jobs: the hosts of others are named in a note, for root to judge."""
    named = json.dumps({**GOOD, "hosts": ["h0", "evil.example"]}).encode()
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        os.setuid(65534)
        with impostor(named, 4_000_000_005):
            os.write(writable, b"!")
            time.sleep(60)
        os._exit(0)
    try:
        os.read(readable, 1)
        assert "evil.example" in top.hosts_of(answers.here())
        assert "evil.example" not in top.hosts_of(answers.here(own=True))
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(readable)
        os.close(writable)


def test_without_a_terminal_each_look_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    looks = iter([answers.Seen([GOOD], [])] * 2)

    def look(*_: object) -> answers.Seen:
        for seen in looks:
            return seen
        raise KeyboardInterrupt

    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(top, "look", look)
    assert top.main(["--interval", "0.1"]) == 0
    assert capsys.readouterr().out.count("train.py") == 2
