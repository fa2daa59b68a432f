"""The other process of a test: python programs.py KIND FUNCTION ARGUMENTS...

Reads the address of the test's end and prints its own.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from ends import End, settle


def echo(end: End, peer: int) -> None:
    """Sends each message back."""
    while True:
        end.wait_until(lambda: bool(end.messages), 60)
        while end.messages:
            end.send(peer, end.messages.pop(0))


def echo_soon(end: End, peer: int) -> None:
    """The same with a fast clock, by which no sleep is short."""
    while not end.failures:
        while end.messages:
            end.send(peer, end.messages.pop(0))
        if not end.progress():
            end.transport.wait(2)


def flood(end: End, peer: int, size: str) -> None:
    """Sends messages without end, 8 at a time."""
    payload, begun = bytes(int(size)), 0
    while not end.failures:
        for _ in range(begun - len(end.sent), 8):
            end.send(peer, payload)
            begun += 1
        if not end.progress():
            end.transport.wait(500)


def sink(end: End, peer: int) -> None:
    """Says hello, then takes messages."""
    end.send(peer, b"hello")
    while not end.failures:
        if not end.progress():
            end.transport.wait(500)
        end.messages.clear()


def stop(end: End, peer: int) -> None:
    """Says hello, then takes nothing more."""
    end.send(peer, b"hello")
    end.wait_until(lambda: bool(end.sent))
    settle([end])  # what is sent may have been copied only
    os.kill(os.getpid(), signal.SIGSTOP)


def watch(end: End, peer: int, traffic: str) -> None:
    """Says when it is connected; then, told to go on, how long it took to see the peer fail."""
    if traffic != "new":
        end.wait_until(lambda: end.messages == [b"hello"])
    cookie = end.send(peer, b"hello")
    if traffic != "new":
        end.wait_until(lambda: cookie in end.sent)
    print("connected", flush=True)
    input()
    if traffic == "busy":
        end.send(peer, bytes(100_000))
    start = time.monotonic()
    while not end.failures:
        step = time.monotonic()
        if not end.progress():
            end.transport.wait(200)
        assert time.monotonic() - step < 1, "progress() blocked"
    print(time.monotonic() - start, end.failures[0][1], flush=True)


def father(end: End, peer: int, start: str) -> None:
    """Once it is connected both ways it has a child, which goes on, and tells its pid."""
    end.send(peer, b"hello")
    end.wait_until(lambda: bool(end.sent) and bool(end.messages))
    child = os.fork() if start == "fork" else os.posix_spawn("/bin/sleep", ["sleep", "60"], {})
    if child == 0:
        time.sleep(60)
        os._exit(0)
    end.send(peer, str(child).encode())
    sink(end, peer)


def orphan(end: End, peer: int) -> None:
    """Is killed once it is connected both ways, and leaves a child."""
    end.send(peer, b"hello")
    end.wait_until(lambda: bool(end.sent) and bool(end.messages))
    if os.fork() == 0:
        time.sleep(60)
        os._exit(0)
    os.kill(os.getpid(), signal.SIGKILL)


def leave(end: End, peer: int, count: str) -> None:
    """Sends messages, disconnects at once and ends."""
    for i in range(int(count)):
        end.send(peer, i.to_bytes(4, "little") * (i * 37 % 20000))
    end.transport.disconnect(peer)


def main() -> None:
    kind, function, *arguments = sys.argv[1:]
    end = End(kind)
    print(end.transport.address().hex(), flush=True)
    peer = end.transport.connect(bytes.fromhex(input()))
    globals()[function](end, peer, *arguments)


if __name__ == "__main__":
    main()
