"""Imports a framework once, and then forks a process for each script that is to be run.

    server.py DESCRIPTOR FRAMEWORK

DESCRIPTOR: a listening Unix socket. client.py connects to it, in the place of the script.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

PR_SET_PDEATHSIG = 1
NUMBERS = array.array("i", [0, 0, 0])  # standard input, output and error
# A framework imports these later by itself: PyTorch when it makes an optimizer.
LATER = {"torch": ("torch._dynamo",), "tensorflow": ("tf_keras",)}


def serve(listening: socket.socket) -> dict[str, Any]:
    """Never returns in the server. Returns in each process that it forks: the job to run there."""
    waits = selectors.DefaultSelector()
    waits.register(listening, selectors.EVENT_READ)
    while True:
        for key, _ in waits.select():
            if key.fileobj is listening:
                client, _ = listening.accept()
                job, descriptors = received(client)
                if not job:  # the client was killed first
                    client.close()
                    continue
                server = os.getpid()
                child = os.fork()
                if not child:
                    client.close()
                    close(waits)
                    become(job, descriptors, server)
                    return job
                for descriptor in descriptors:
                    os.close(descriptor)
                tell(client, child)
                waits.register(client, selectors.EVENT_READ, child)
                waits.register(os.pidfd_open(child), selectors.EVENT_READ, (child, client))
            elif isinstance(key.data, int):  # its client was killed
                assert isinstance(key.fileobj, socket.socket)
                if key.fileobj.fileno() >= 0:  # else its rank has ended in the same moment
                    waits.unregister(key.fileobj)
                    kill(key.data)
            else:
                ended(waits, key.fd, *key.data)


def ended(
    waits: selectors.BaseSelector, descriptor: int, child: int, client: socket.socket
) -> None:
    waits.unregister(descriptor)
    os.close(descriptor)
    kill(child)  # what it has left behind
    tell(client, os.waitpid(child, 0)[1])
    with contextlib.suppress(KeyError):
        waits.unregister(client)
    client.close()


def kill(child: int) -> None:
    """With all that it has started. Nobody else has its number: it is not waited for yet."""
    for by in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError):
            by(child, signal.SIGKILL)


def tell(client: socket.socket, number: int) -> None:
    with contextlib.suppress(OSError):  # it was killed
        client.sendall(number.to_bytes(8, "little"))


def close(waits: selectors.BaseSelector) -> None:
    for key in list(waits.get_map().values()):
        if isinstance(key.fileobj, socket.socket):
            key.fileobj.close()
        else:
            os.close(key.fd)
    waits.close()


def received(client: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """The script to run, and the client's standard input, output and error."""
    room = socket.CMSG_SPACE(len(NUMBERS) * NUMBERS.itemsize)
    data, control, _, _ = client.recvmsg(1 << 20, room)
    numbers = array.array("i")
    for _, _, content in control:
        numbers.frombytes(content)
    while data and not data.endswith(b"\n"):
        more = client.recv(1 << 20)
        data = data + more if more else b""
    return (json.loads(data) if data else {}), list(numbers)


def become(job: dict[str, Any], descriptors: list[int], server: int) -> None:
    """Makes this process what the client would be, had it started Python itself."""
    os.setsid()  # a group to be killed
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != server:
        os._exit(1)
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(job["folder"])
    os.sched_setaffinity(0, job["cores"])
    os.environ.clear()
    os.environ.update(job["environment"])
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()  # not the same on all ranks


def run(job: dict[str, Any]) -> None:
    """The script, as `python SCRIPT WORDS` does."""
    script = Path(job["words"][0])
    given = job["environment"].get("PYTHONPATH", "").split(os.pathsep)
    sys.argv = job["words"]
    sys.path[:1] = [str(script.parent), *filter(None, given)]
    main = ModuleType("__main__")
    main.__file__ = str(script)
    sys.modules["__main__"] = main
    code = compile(script.read_bytes(), str(script), "exec", dont_inherit=True)
    exec(code, vars(main))


def prepare(framework: str) -> None:
    """Frozen objects are not collected, so that ranks do not copy the memory that they lie in."""
    importlib.import_module(framework)
    for module in LATER[framework]:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    gc.freeze()


if __name__ == "__main__":
    prepare(sys.argv[2])
    run(serve(socket.socket(fileno=int(sys.argv[1]))))
