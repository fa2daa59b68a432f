"""Between hosts: a link that goes down is noticed, and connecting to such a host blocks nobody."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from benchmarks.bench.lab import Host, Lab, LabError

pytestmark = [pytest.mark.root, pytest.mark.timeout(90)]

PROGRAM = Path(__file__).with_name("programs.py")
# Some seconds instead of half a minute.
SHORT = {
    "UCX_TCP_SYN_CNT": "1",
    "UCX_TCP_KEEPIDLE": "1s",
    "UCX_TCP_KEEPINTVL": "1s",
    "UCX_TCP_KEEPCNT": "2",
}


@pytest.fixture
def lab() -> Iterator[Lab]:
    try:
        with Lab(2, rate=None) as lab:
            yield lab
    except LabError as error:
        pytest.skip(str(error))


def start(host: Host, *arguments: str, inside: Sequence[str] = ()) -> subprocess.Popen[str]:
    return subprocess.Popen(
        host.command([*inside, sys.executable, str(PROGRAM), "ucx-tcp", *arguments]),
        env={**os.environ, **SHORT},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def say(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin
    process.stdin.write(line)
    process.stdin.flush()


def hear(process: subprocess.Popen[str]) -> str:
    assert process.stdout and process.stderr
    line = process.stdout.readline()
    assert line, process.stderr.read()
    return line


def pull_plug(lab: Lab) -> None:
    """Frames to the second host vanish; nobody says so."""
    subprocess.run(lab.command(["ip", "link", "set", "port-h1", "down"]), check=True)
    nowhere = ["lladdr", "02:00:00:00:00:99", "dev", "eth0"]
    command = ["ip", "neigh", "replace", lab.hosts[1].address, *nowhere]
    subprocess.run(lab.hosts[0].command(command), check=True)


@pytest.mark.parametrize("traffic", ["idle", "busy"])
def test_vanished_host_is_noticed(lab: Lab, traffic: str) -> None:
    watcher, other = start(lab.hosts[0], "watch", traffic), start(lab.hosts[1], "sink")
    addresses = hear(watcher), hear(other)
    say(other, addresses[0])
    say(watcher, addresses[1])
    assert hear(watcher) == "connected\n"
    pull_plug(lab)
    say(watcher, "now\n")
    seconds, reason = hear(watcher).split(maxsplit=1)
    assert 1 < float(seconds) < 15
    assert "on h1" in reason


@pytest.mark.slow
def test_a_process_that_is_stopped_for_long_keeps_its_connection(lab: Lab) -> None:
    """Its kernel answers, though it takes nothing more: its buffers are full."""
    sender, other = start(lab.hosts[0], "flood", "60000"), start(lab.hosts[1], "sink")
    addresses = hear(sender), hear(other)
    say(other, addresses[0])
    say(sender, addresses[1])
    time.sleep(2)
    stopped = psutil.Process(other.pid).children(recursive=True)[-1]
    stopped.send_signal(signal.SIGSTOP)
    try:
        time.sleep(45)  # half a minute is what a host may be silent
        assert sender.poll() is None
    finally:
        stopped.send_signal(signal.SIGCONT)
    time.sleep(6)
    assert sender.poll() is None and other.poll() is None
    for process in (sender, other):
        process.kill()


def test_connecting_to_a_vanished_host(lab: Lab) -> None:
    watcher, other = start(lab.hosts[0], "watch", "new"), start(lab.hosts[1], "sink")
    hear(watcher)
    address = hear(other)
    pull_plug(lab)
    say(watcher, address)
    assert hear(watcher) == "connected\n"
    say(watcher, "now\n")
    seconds, reason = hear(watcher).split(maxsplit=1)
    assert 1 < float(seconds) < 15
    assert "on h1" in reason
    output, errors = watcher.communicate(timeout=20)
    assert output == "", "UCX writes to standard output"
    assert all(line.startswith("[omnihvd warning h0] UCX: ") for line in errors.splitlines())


def test_a_child_does_not_hide_the_end_of_its_parent(lab: Lab) -> None:
    """It would hold the connection, if the parent's sockets were its own."""
    shell = ["sh", "-c", '"$@"; sleep 60', "sh"]  # the first process of a container takes all along
    container = ["unshare", "--mount", "--pid", "--mount-proc", "--fork", "--kill-child", *shell]
    watcher = start(lab.hosts[0], "watch", "idle")
    other = start(lab.hosts[1], "orphan", inside=container)
    addresses = hear(watcher), hear(other)
    say(other, addresses[0])
    say(watcher, addresses[1])
    assert hear(watcher) == "connected\n"
    say(watcher, "now\n")
    seconds, reason = hear(watcher).split(maxsplit=1)
    assert float(seconds) < 15
    assert "on h1" in reason
    other.kill()
