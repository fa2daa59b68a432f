"""Bytes from strangers on UCX's TCP ports do no harm."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
from pathlib import Path

from ends import End, Process, poll_until, settle


def listening_ports() -> list[tuple[str, int]]:
    """Where this process listens, from /proc."""
    inodes = set()
    for fd in Path("/proc/self/fd").iterdir():
        try:
            inodes.add(str(fd.readlink()))
        except OSError:  # the descriptor of this very listing
            continue
    found = []
    for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
            address, port = fields[1].split(":")
            host = socket.inet_ntoa(struct.pack("<I", int(address, 16)))
            found.append((host, int(port, 16)))
    return found


def test_random_bytes_on_every_port() -> None:
    with Process("ucx-tcp", "echo") as other:
        end = other.end
        other.end.send(other.peer, b"before")
        end.wait_until(lambda: end.messages == [b"before"])
        ports = listening_ports()
        assert ports, "UCX listens nowhere"
        rng = random.Random(3)
        for host, port in ports:
            held = []
            for size in (0, 1, 7, 8, 16, 100, 9000, 100_000):
                stranger = socket.create_connection(
                    ("127.0.0.1" if host == "0.0.0.0" else host, port)
                )
                stranger.settimeout(0.2)
                with contextlib.suppress(OSError):  # UCX has hung up on us: well done
                    stranger.sendall(rng.randbytes(size))
                held.append(stranger)  # half of them stay open
                if size % 2 == 0:
                    held.pop().close()
                settle([end], 0.05)
            for stranger in held:
                stranger.close()
        for i in range(20):
            end.send(other.peer, bytes([i]) * 10_000)
        end.wait_until(lambda: len(end.messages) == 21)
        assert [message[0] for message in end.messages[1:]] == list(range(20))
        newcomer = End("ucx-tcp")
        newcomer.send(newcomer.connect(end), b"welcome")
        poll_until([newcomer, end], lambda: end.messages[-1] == b"welcome")
        assert not end.failures
