"""A process's side of `omnihvd top`: a local socket that sends its figures.

The socket's name is in Linux' abstract namespace, so it leaves no file behind; the name belongs to
the network namespace. Containers may share a network namespace but number their processes apart, so
if the name with this process's number is in use, a random number takes its place. Any process on
the host can connect. So the kernel is asked for the peer's user, and only the same user and root
get an answer. Nothing is read from the connection. A thread sleeps until a peer connects.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import socket
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Any

from omnihvd import engine
from omnihvd.intercept import horovod_library, torch_gloo
from omnihvd.launchers import process_rank

PREFIX = "omnihvd-"
PAUSE_S = 0.5
BACKLOG = 64  # the kernel refuses an asker at once, not later, where this many wait


def serve() -> None:
    """Begins to serve. OSError where there are no such sockets."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    _bind(server)
    server.listen(BACKLOG)
    os.register_at_fork(after_in_child=server.close)  # a child is not this process
    begun = time.time()
    thread = threading.Thread(
        target=_answer, args=(server, begun), name="omnihvd watchable", daemon=True
    )
    thread.start()


def _bind(server: socket.socket) -> None:
    prefix = f"\0{PREFIX}{os.getuid()}-"
    try:
        server.bind(f"{prefix}{os.getpid()}")
    except OSError as why:
        if why.errno != errno.EADDRINUSE:
            raise
        server.bind(f"{prefix}{random.SystemRandom().randrange(10**9, 10**10)}")


def _answer(server: socket.socket, begun: float) -> None:
    while True:
        try:
            connection, _ = server.accept()
        except OSError:  # no descriptors are left, say, for a moment
            time.sleep(PAUSE_S)
            continue
        with connection, contextlib.suppress(Exception):
            connection.settimeout(1)
            if may_ask(connection):
                connection.sendall(json.dumps(figures(begun)).encode())


def may_ask(connection: socket.socket) -> bool:
    """Whether the process at the other end is this user's, or root's."""
    return user_of(connection) in (0, os.getuid())


def user_of(connection: socket.socket) -> int:
    """The user of the process at the other end, from the kernel."""
    size = struct.calcsize("3i")
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    return int(struct.unpack("3i", credentials)[1])


def figures(begun: float) -> dict[str, Any]:
    rank, ranks = process_rank() or 0, 1
    for horovod in horovod_library.initialized():
        rank, ranks = horovod.rank(), horovod.size()
    c10d = sys.modules.get(torch_gloo.MODULE)
    if ranks == 1 and c10d and c10d.is_initialized():
        rank, ranks = c10d.get_rank(), c10d.get_world_size()
    return {
        "pid": os.getpid(),
        "rank": rank,
        "ranks": ranks,
        "host": os.environ.get("OMNIHVD_HOST_ID") or socket.gethostname(),  # as groups have it
        "hosts": sorted(engine.session.hosts_of_groups()),
        "begun": begun,
        "now": time.time(),
        "script": Path(sys.argv[0]).name if sys.argv else "",
        "stats": engine.session.stats(),
        "last_ranks": {str(k): v for k, v in engine.session.last_ranks().items()},
    }
