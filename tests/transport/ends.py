"""One end of a connection, as the tests see it, in this process or in another."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

from _engine_tests.transport import Clock, Transport

# Each as (transport, UCX_TLS, if it is UCX). "any" is what users have: UCX chooses. The thread
# sanitizer takes what CMA reads of another process for memory of this one.
CMA = "TSAN_OPTIONS" not in os.environ
KINDS = {
    "memory": ("memory", ""),
    "ucx-shm": ("ucx", "posix,sysv,cma,self" if CMA else "posix,sysv,self"),
    "ucx-tcp": ("ucx", "tcp,self"),
    "ucx-any": ("ucx", "all" if CMA else "^cma"),
    "udp": ("udp", ""),
}
PATIENCE_S = 30


ENDS: list[End] = []  # of this test


def close_all() -> None:
    """At once, since over TCP each waits for the others to take its last words."""
    threads = [threading.Thread(target=end.transport.close) for end in ENDS if end.transport]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ENDS.clear()


class End:
    """A transport, and all that it has reported."""

    def __init__(self, kind: str) -> None:
        if kind == "udp-fast":  # of test_udp_stops.py
            self.transport = Transport.udp(clock=Clock(speed=100))
        else:
            maker, tls = KINDS[kind]
            with patch.dict(os.environ, {"UCX_TLS": tls or "all"}):  # UCX reads it now
                self.transport = getattr(Transport, maker)()
        self.messages: list[bytes] = []
        self.sent: list[int] = []
        self.failures: list[tuple[int, str]] = []
        self._cookies = itertools.count()
        ENDS.append(self)

    def connect(self, other: End) -> int:
        return self.transport.connect(other.transport.address())

    def send(self, peer: int, *buffers: Any) -> int:
        cookie = next(self._cookies)
        self.transport.send(peer, buffers, cookie)
        return cookie

    def progress(self) -> bool:
        moved = self.transport.progress()
        self.messages += self.transport.take_messages()
        self.sent += self.transport.take_sent()
        self.failures += self.transport.take_failures()
        return moved

    def wait_until(self, done: Callable[[], bool], seconds: float = PATIENCE_S) -> float:
        """As an engine thread: works while there is work, else sleeps. Returns seconds."""
        start = time.monotonic()
        while not done():
            assert time.monotonic() - start < seconds, self.state()
            if not self.progress() and not done():
                self.transport.wait(500)
        return time.monotonic() - start

    def state(self) -> str:
        return (
            f"{len(self.messages)} messages, {len(self.sent)} sent, failures {self.failures}, "
            f"{self.transport.describe()}"
        )


def poll_until(ends: Sequence[End], done: Callable[[], bool], seconds: float = PATIENCE_S) -> None:
    start = time.monotonic()
    while not done():
        assert time.monotonic() - start < seconds, [end.state() for end in ends]
        for end in ends:
            end.progress()


def settle(ends: Sequence[End], seconds: float = 0.3) -> None:
    """Lets happen what is going to happen."""
    end = time.monotonic() + seconds
    poll_until(ends, lambda: time.monotonic() > end, seconds + PATIENCE_S)


@contextlib.contextmanager
def driven(end: End) -> Iterator[None]:
    """Inside, another thread makes the end progress."""
    stop = threading.Event()
    thread = threading.Thread(target=lambda: [end.progress() for _ in iter(stop.is_set, True)])
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


class Process:
    """Another process with one end, connected both ways: runs `function` of programs.py with it.

    self.end is the end here (a new one if none is given), and self.peer the process.
    """

    def __init__(
        self,
        kind: str,
        function: str,
        *arguments: object,
        connect: bool = True,
        end: End | None = None,
    ) -> None:
        program = Path(__file__).with_name("programs.py")
        self.end = end or End(kind)
        self.child = subprocess.Popen(
            [sys.executable, str(program), kind, function, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.child.stdin and self.child.stdout
        self.child.stdin.write(self.end.transport.address().hex() + "\n")
        self.child.stdin.flush()
        self.address = bytes.fromhex(self.child.stdout.readline())
        if connect:
            self.peer = self.end.transport.connect(self.address)

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.child.kill()
        self.child.communicate()


def patterned(size: int, seed: int) -> bytes:
    """Bytes that differ at every offset and for every seed."""
    return b"".join(
        (seed * 0x9E3779B97F4A7C15 + i & (1 << 64) - 1).to_bytes(8, "little")
        for i in range((size + 7) // 8)
    )[:size]
