"""A peer that is gone is reported, soon, once, and its sends are given back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from _engine_tests.transport import Transport
from ends import End, Process, driven, poll_until, settle

SOON_S = 3


@pytest.mark.parametrize("kind", ["memory", "ucx-tcp", "udp"])  # over shared memory it is not
def test_destroyed_transport_is_noticed(kind: str) -> None:
    a, b = End(kind), End(kind)
    peer = a.connect(b)
    a.send(peer, b"x")
    poll_until([a, b], lambda: bool(b.messages))
    b.transport = None
    a.wait_until(lambda: bool(a.failures), SOON_S)
    assert [failure[0] for failure in a.failures] == [peer]


def test_killed_memory_transport() -> None:
    a, b = End("memory"), End("memory")
    peer, back = a.connect(b), b.connect(a)
    b.send(back, b"last words")
    b.transport.kill()
    a.wait_until(lambda: bool(a.failures), SOON_S)
    assert a.messages == [b"last words"]
    cookie = a.send(peer, b"to nobody")
    a.wait_until(lambda: cookie in a.sent)
    b.send(back, b"from the dead")
    settle([a, b], 0.05)
    assert a.messages == [b"last words"] and len(a.failures) == 1
    # Its address can still be connected to, as that of a process that has ended.
    late = a.connect(b)
    a.wait_until(lambda: late in [failure[0] for failure in a.failures], SOON_S)


@pytest.mark.parametrize("traffic", ["none", "receiving", "sending"])
def test_killed_process_is_noticed(process_kind: str, traffic: str) -> None:
    program = ("flood", 100_000) if traffic == "receiving" else ("sink",)
    with Process(process_kind, *program) as other:
        end = other.end
        end.wait_until(lambda: bool(end.messages))
        begun = 0
        until = time.monotonic() + 0.3
        payload = bytes(300_000)
        while traffic == "sending" and time.monotonic() < until:
            for _ in range(begun - len(end.sent), 32):
                end.send(other.peer, payload)
                begun += 1
            end.progress()
        if traffic == "sending":  # the kill meets messages that are under way
            for _ in range(200):
                end.send(other.peer, payload)
            begun += 200
        other.child.kill()
        assert end.wait_until(lambda: bool(end.failures), SOON_S) < SOON_S
        assert str(other.child.pid) in end.failures[0][1], "the reason names the process"
        end.wait_until(lambda: len(end.sent) == begun, SOON_S)
        assert sorted(end.sent) == list(range(begun)), "each send is given back once"
        # It stays gone: no second report, and sends to it are dropped.
        cookie = end.send(other.peer, payload)
        end.wait_until(lambda: cookie in end.sent, SOON_S)
        settle([end])
        assert [failure[0] for failure in end.failures] == [other.peer]


def test_closing_does_not_wait_for_a_process_that_has_just_been_killed() -> None:
    with Process("ucx-any", "sink") as other:
        end = other.end
        end.wait_until(lambda: bool(end.messages))
        os.kill(other.child.pid, signal.SIGSTOP)
        for _ in range(2000):  # more than its queue has room for
            end.send(other.peer, bytes(30_000))
        other.child.kill()
        begun = time.monotonic()
        end.transport.close()
        assert time.monotonic() - begun < SOON_S


def test_process_that_ended_before_connect(process_kind: str) -> None:
    with Process(process_kind, "sink", connect=False) as other:
        other.end.wait_until(lambda: bool(other.end.messages))
        other.child.kill()
        other.child.wait()
        peer = other.end.transport.connect(other.address)
        cookie = other.end.send(peer, b"anybody?")
        other.end.wait_until(lambda: bool(other.end.failures), SOON_S)
        other.end.wait_until(lambda: cookie in other.end.sent, SOON_S)


OUT_OF_DESCRIPTORS = """
import contextlib, os, resource, sys
sys.path.insert(0, sys.argv[1])
from ends import Process, settle
from omnihvd.engine import EngineError
with Process(sys.argv[2], "echo", connect=False) as other:
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    opened = []
    with contextlib.suppress(OSError):
        while True:
            opened.append(os.open("/dev/null", os.O_RDONLY))
    for _ in range(int(sys.argv[3])):
        os.close(opened.pop())
    try:
        other.end.send(other.end.transport.connect(other.address), b"x")
        settle([other.end], 0.2)
        print("connected")
    except EngineError as why:
        print(str(why).replace(str(other.child.pid), "PID"))
    for _, reason in other.end.failures:
        print(reason.replace(str(other.child.pid), "PID"))
"""


@pytest.mark.parametrize("left", [0, 1, 2])
def test_no_descriptors_left_is_not_a_peer_that_has_ended(ucx_kind: str, left: int) -> None:
    """In a process of its own: UCX does not recover from it."""
    done = subprocess.run(
        [sys.executable, "-c", OUT_OF_DESCRIPTORS, __file__.rsplit("/", 1)[0], ucx_kind, str(left)],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    if left == 2 and "connected" in said:  # UCX needs none, or says so later
        said.remove("connected")
    else:
        assert said
    assert all("process PID on " in line and "(ulimit -n)" in line for line in said), said


def test_too_few_descriptors_for_ucx_are_an_error() -> None:
    """UCX itself would end the process."""
    code = (
        "import resource\n"
        "from _engine_tests.transport import Transport\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24))\n"
        "Transport.ucx()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert done.returncode == 1 and "EngineError: open failed" in done.stderr
    assert "(ulimit -n)" in done.stderr


def test_the_others_go_on(process_kind: str) -> None:
    end = End(process_kind)
    # Over shared memory it dies idle: see transport.h on one that is killed while it writes.
    first = ("flood", 1 << 20) if process_kind in ("ucx-tcp", "udp") else ("echo",)
    with (
        Process(process_kind, *first, end=end) as dying,
        Process(process_kind, "echo", end=end) as living,
    ):
        if first == ("echo",):
            for _ in range(4):
                end.send(dying.peer, b"x")
        end.wait_until(lambda: len(end.messages) > 3)
        dying.child.kill()
        end.wait_until(lambda: bool(end.failures), SOON_S)
        settle([end])
        end.messages.clear()
        for i in range(50):
            end.send(living.peer, bytes([i]) * 30_000)
        end.wait_until(lambda: len(end.messages) == 50)
        assert [message[0] for message in end.messages] == list(range(50))


def test_stopped_process_does_not_block(process_kind: str) -> None:
    """It neither fails nor makes send() or disconnect() block, and has no hold on buffers."""
    with Process(process_kind, "stop") as other:
        end = other.end
        end.wait_until(lambda: bool(end.messages))
        os.waitid(os.P_PID, other.child.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        start = time.monotonic()
        for _ in range(100):
            end.send(other.peer, bytes(1_000_000))
        assert time.monotonic() - start < 2
        settle([end], 0.5)
        assert not end.failures
        assert len(end.sent) < 100
        start = time.monotonic()
        end.transport.disconnect(other.peer)
        for cookie in range(100):
            end.transport.detach(cookie)
        assert time.monotonic() - start < 1
        start = time.monotonic()
        end.transport = None
        assert time.monotonic() - start < 8


def test_no_noise_when_a_peer_dies(process_kind: str) -> None:
    """UCX's own log stays silent: what happened is in on_peer_failed's reason."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from ends import Process\n"
        "with Process(sys.argv[2], 'flood', 100000) as other:\n"
        "    other.end.wait_until(lambda: len(other.end.messages) > 10)\n"
        "    for _ in range(50): other.end.send(other.peer, bytes(100000))\n"
        "    other.child.kill()\n"
        "    other.end.wait_until(lambda: len(other.end.sent) == 50 and other.end.failures, 3)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, __file__.rsplit("/", 1)[0], process_kind],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout + done.stderr == ""


@pytest.mark.parametrize("disconnect", [False, True])
@pytest.mark.parametrize("first", [0, 1])
def test_destruction_in_any_order(kind: str, first: int, disconnect: bool) -> None:
    ends = [End(kind), End(kind)]
    peers = [ends[0].connect(ends[1]), ends[1].connect(ends[0])]
    for end, peer in zip(ends, peers):
        end.send(peer, bytes(100_000))
    poll_until(ends, lambda: all(end.messages for end in ends))
    other = ends[1 - first]
    with driven(other):
        if disconnect:
            ends[first].transport.disconnect(peers[first])
        ends[first].transport = None
    other.transport.disconnect(peers[1 - first])
    other.transport = None


def test_destroyed_with_sends_under_way(kind: str) -> None:
    if kind in ("udp", "ucx-shm"):
        pytest.skip("as of a stopped process, above")
    a, b = End(kind), End(kind)
    peer = a.connect(b)
    for _ in range(100):
        a.send(peer, bytes(500_000))
    a.progress()
    a.transport = None
    settle([b], 0.1)
    assert Transport.memory()  # this process is well
