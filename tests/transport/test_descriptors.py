"""Descriptors: what happens while a process has none left, and who else holds sockets."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from ends import Process

HERE = str(Path(__file__).parent)
# While this process has no descriptors, which is longer than several rounds of UCX's keep-alive.
OUT_OF_DESCRIPTORS = """
import contextlib, os, resource, sys, time
sys.path.insert(0, sys.argv[1])
from ends import Process, settle

kind, late = sys.argv[2:]
with Process(kind, "echo") as other:
    end, payload, begun = other.end, bytes(range(251)) * 2000, 0
    def there_and_back(size, peer=other.peer):
        global begun
        for _ in range(100):
            end.send(peer, payload[:size])
        begun += 100
        end.wait_until(lambda: len(end.messages) == begun)
        assert all(message == payload[:size] for message in end.messages[-100:])
    if not late:
        there_and_back(1)
    resource.setrlimit(resource.RLIMIT_NOFILE, (400, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    opened = []
    if late:
        newcomer = Process(kind, "echo", connect=False, end=end)
    with contextlib.suppress(OSError):
        while True:
            opened.append(os.open("/dev/null", os.O_RDONLY))
    until = time.monotonic() + 2.5
    while time.monotonic() < until and not end.failures:
        settle([end], 0.1)
        there_and_back(len(payload) if int(time.monotonic() * 10) % 2 else 100)
    assert not end.failures, end.failures
    for descriptor in opened:
        os.close(descriptor)
    if late:  # it has knocked in vain until now
        there_and_back(1000, end.transport.connect(newcomer.address))
        newcomer.__exit__()
    assert not end.failures, end.failures
    print("all well")
"""


def run(code: str, *arguments: object, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, HERE, *map(str, arguments)],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("kind, late", [("ucx-shm", ""), ("ucx-any", ""), ("ucx-tcp", "late")])
def test_a_process_out_of_descriptors_keeps_its_peers(kind: str, late: str) -> None:
    said = run(OUT_OF_DESCRIPTORS, kind, late, UCX_KEEPALIVE_INTERVAL="1s")
    assert "all well" in said


def connections(process: psutil.Process, kind: str) -> int:
    return len(process.net_connections("udp" if kind == "udp" else "tcp"))


@pytest.mark.parametrize("start", ["fork", "exec"])
@pytest.mark.parametrize("kind, least", [("ucx-tcp", 2), ("udp", 1)])
def test_a_child_holds_no_connection_of_its_parent(kind: str, least: int, start: str) -> None:
    """Else the peers would not learn that the parent has ended, for as long as the child lives."""
    with Process(kind, "father", start) as other:
        other.end.send(other.peer, b"hello")
        other.end.wait_until(lambda: len(other.end.messages) >= 2)
        parent = psutil.Process(other.child.pid)
        child = psutil.Process(int(other.end.messages[1]))
        try:
            assert connections(parent, kind) >= least
            # The parent's fork() may have returned first.
            other.end.wait_until(lambda: connections(child, kind) == 0)
        finally:
            child.kill()
