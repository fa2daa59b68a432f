"""Strangers to a job: descriptions, aggregators, messages and processes."""

from __future__ import annotations

import contextlib
import hmac
import os
import resource
import secrets
import socket
import struct
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import _engine_tests
import numpy as np
import pytest
from _engine_tests.session import pack_agreed
from groups import Meeting, in_threads, session
from test_in_between import Between, addresses_of_one_length, joined, sums_through  # noqa: F401
from test_strangers import CONTRIBUTION, HEADER, RESULT, address_of, group_number, header

from omnihvd.engine import EngineError

SECRET = "the secret of a test"


def u64(number: int) -> bytes:
    return struct.pack("<Q", number)


def text(content: bytes) -> bytes:
    return u64(len(content)) + content


NODE = text(text(b"host") + text(b"no address of this process"))


def description(
    self: int = 1, workers: int = 1, nodes: tuple[bytes, ...] = (NODE, NODE), group: int = 7
) -> bytes:
    packed = pack_agreed(session.Settings())
    content = u64(workers) + text(packed) + u64(len(nodes)) + b"".join(nodes)
    return u64(self) + u64(group) + content


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (description(self=0), "malformed description of a group: no such aggregator"),
        (description(self=2), "malformed description of a group: no such aggregator"),
        (description(workers=0), "malformed description of a group: no workers"),
        (description(workers=3), "malformed description of a group: no workers"),
        (description(nodes=(NODE, text(text(b"host")))), "of a group: no address"),
        (description()[:-1], "malformed description of a group: it ends early"),
        (description(), "the addresses that this group was given are no longer used: try again"),
    ],
)
def test_a_group_that_an_aggregator_cannot_be_of(content: bytes, said: str) -> None:
    host = session.AggregatorHost(session.Settings())
    with pytest.raises(EngineError, match=said):
        host.admit(content, SECRET)


def test_an_aggregator_that_loses_workers_keeps_the_threads_of_other_groups() -> None:
    """It makes new threads for new groups after each loss, and ends those that have no group."""
    host = _engine_tests.session.aggregator_host(session.Settings())
    alive, gone = (_engine_tests.transport.Transport.memory() for _ in range(2))
    dead = gone.address()
    gone.close()

    def admit(group: int, worker: bytes, own: list[bytes]) -> None:
        nodes = [text(text(b"host") + b"".join(map(text, at))) for at in ([worker], own)]
        host.admit(description(nodes=tuple(nodes), group=group), SECRET)

    def lose_a_worker(group: int) -> None:
        own, until = host.addresses(), time.monotonic() + 20
        admit(group, dead, own)
        while host.addresses() == own:
            assert time.monotonic() < until, "no thread has noticed it"
            time.sleep(0.001)

    first = host.addresses()
    admit(1, alive.address(), first)
    lose_a_worker(2)
    lose_a_worker(3)
    admit(4, alive.address(), first)


def framed(message: bytes) -> bytes:
    return struct.pack("<I", len(message)) + message


class Talk:
    """One conversation of a stand-in for an aggregator."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.read = connection.makefile("rb").read
        self.nonces = b""

    def heard(self) -> bytes:
        (size,) = struct.unpack("<I", self.read(4))
        return self.read(size)

    def say(self, message: bytes) -> None:
        self.connection.sendall(framed(message))

    def prove(self, who: bytes, content: bytes) -> None:
        said = hmac.digest(SECRET.encode(), who + self.nonces + content, "sha256")
        self.say(b"ok" + said + content)

    def meet(self, addresses: bytes) -> None:
        self.nonces = self.heard().partition(b"\n")[2]
        ours = secrets.token_bytes(32)
        self.prove(b"aggregator", ours)
        self.nonces += ours
        self.heard()
        self.prove(b"addresses", addresses)


@contextlib.contextmanager
def aggregator(answer: Callable[[Talk], None]) -> Iterator[str]:
    """The address of one that answers so."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError, struct.error):
                while True:
                    connection, _ = listener.accept()
                    with connection, contextlib.suppress(OSError, struct.error):
                        answer(Talk(connection))

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield "127.0.0.1:{}".format(*listener.getsockname()[1:])
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(20)


def says_nothing_known(talk: Talk) -> None:
    talk.heard()
    talk.say(b"?")


def proves_nothing(talk: Talk) -> None:
    talk.heard()
    talk.say(b"ok")


def is_slow(talk: Talk) -> None:
    """It answers after more than a second, byte by byte."""
    talk.heard()
    talk.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    time.sleep(1.1)
    for byte in framed(b"no" + b"it has no time"):
        talk.connection.sendall(bytes([byte]))
        time.sleep(0.001)


def hangs_up(talk: Talk) -> None:
    talk.meet(text(b"an address"))
    talk.heard()  # the group


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            says_nothing_known,
            "it is no aggregator of this release: install the same omnihvd on all hosts",
        ),
        (
            proves_nothing,
            "it is no aggregator of this release: install the same omnihvd on all hosts",
        ),
        (lambda talk: talk.meet(b""), "it names no address that ranks can reach"),
        (hangs_up, "it closed the connection; its log says why"),
        (is_slow, "it has no time"),
    ],
)
def test_what_is_no_aggregator_is_named(answer: Callable[[Talk], None], said: str) -> None:
    with aggregator(answer) as address:
        results = in_threads(2, lambda r, g: None, aggregators=[address], secret=SECRET)
    for why in results:
        assert isinstance(why, EngineError) and f"aggregator {address}: {said}" in str(why)


JOINS = f"""
import sys
from groups import in_threads
(why,) = in_threads(1, lambda rank, group: None, aggregators=[sys.argv[1]], secret={SECRET!r})
print(why)
"""


def test_a_job_without_standard_input_reaches_its_aggregator() -> None:
    """The connection then has the descriptor 0."""
    seen = []

    def refuses(talk: Talk) -> None:
        talk.heard()
        seen.append(Path(f"/proc/{job.pid}/fd/0").readlink())
        talk.say(b"no" + b"it has no time")

    with aggregator(refuses) as address:
        job = subprocess.Popen(
            [sys.executable, "-c", JOINS, address],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            preexec_fn=lambda: os.close(0),
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            said, _ = job.communicate(timeout=60)
        finally:
            job.kill()
    assert f"aggregator {address}: it has no time" in said
    assert str(seen[0]).startswith("socket:")


def test_a_secret_on_some_ranks_protects_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    assert joined({"secret": SECRET}, {}) == ["", ""]
    assert " has: the group's key travels in the clear; set it, or " in capfd.readouterr().err


def test_a_result_for_nobody_is_refused() -> None:
    def counts_on(come: list[bytes]) -> list[bytes]:
        made = []
        for message in come:
            if HEADER.unpack_from(message)[2] == RESULT:
                message = message[:32] + u64(77) + message[40:]
            made.append(message)
        return made

    results, _, _ = sums_through(counts_on)
    said = "a result for collective 77, which is not under way"
    assert any(said in str(why) for why in results), results


def test_a_contribution_to_another_aggregator_is_refused() -> None:
    def of_one_aggregator(come: list[bytes]) -> list[bytes]:
        made = []
        for message in come:
            if HEADER.unpack_from(message)[2:4] == (CONTRIBUTION, 1):  # with a shape
                aggregators = HEADER.size + 16
                message = message[:aggregators] + struct.pack("<I", 1) + message[aggregators + 4 :]
            made.append(message)
        return made

    def work(rank: int, group: Any) -> None:
        if rank == 1:
            time.sleep(1)  # its aggregator hears of the sum before it has begun
        x = np.ones(300_000, np.float32)
        group.allreduce(x, x)

    between = Between(of_one_aggregator)
    results = in_threads(2, work, meeting=between)
    between.end()
    said = "a contribution to a process that does not aggregate it"
    assert any(said in str(why) for why in results), results


def test_memory_that_is_refused_is_named(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A rank that may write no such file stands for a /dev/shm that is full."""
    monkeypatch.setenv("OMNIHVD_WAY", "shared")
    monkeypatch.setenv("UCX_TLS", "tcp,self")
    monkeypatch.setenv("OMNIHVD_TIMEOUT", "1")
    meeting, x = Meeting(2), np.ones((2, 300_000), np.float32)
    ranks = [session.Communicator(rank, 2) for rank in range(2)]

    def sum_on(rank: int) -> None:
        library = types.SimpleNamespace(allgather=meeting.allgather(rank))
        ranks[rank].meet(library.allgather)
        with contextlib.suppress(EngineError):  # ranks of one process have one engine
            ranks[rank].sum(x[rank].ctypes.data, x.shape[1], "float32", library)

    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limit[1]))
    try:
        with ThreadPoolExecutor() as pool:
            list(pool.map(sum_on, range(2)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    said = ", send messages instead of using shared memory: "
    assert said in capfd.readouterr().err


def test_a_message_of_no_member_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    meeting = Meeting(1)
    refused = session.stats()["messages_refused"]

    def work(rank: int, group: Any) -> None:
        stranger = _engine_tests.transport.Transport.memory()
        peer = stranger.connect(address_of(meeting, 0))
        stranger.send(peer, [header(group=group_number(meeting), sender=9)], 0)
        while session.stats()["messages_refused"] == refused:
            stranger.progress()

    assert in_threads(1, work, meeting=meeting) == [None]
    assert "refused a message: a sender that is not a member of" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((np.zeros(8, np.float32), np.zeros(9, np.float32)), "contiguous and of equal size"),
        ((np.zeros((4, 4), np.float32).T, np.zeros(16, np.float32)), "contiguous and of equal"),
        ((np.zeros(8), np.zeros(8), "float32"), "this array's elements are not of float32"),
        ((np.zeros(8, "c8"), np.zeros(8, "c8")), "omnihvd does not sum dtype complex64"),
    ],
)
def test_arrays_that_cannot_be_summed(given: tuple[Any, ...], said: str) -> None:
    def work(rank: int, group: Any) -> None:
        with pytest.raises((TypeError, ValueError), match=said):
            group.allreduce(*given)

    assert in_threads(1, work) == [None]


FORKS = """
import os, sys
import numpy as np
from omnihvd.engine import EngineError, session
group = session.Engine(session.Settings()).join(0, 1, lambda mine: [mine])
x = np.ones(100_000, np.float32)
if os.fork() == 0:
    try:
        group.allreduce(x, x)
    except EngineError as why:
        print(why, flush=True)
    os._exit(0)
os.wait()
"""


def test_a_forked_child_is_told_to_be_spawned() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKS], env=os.environ, capture_output=True, text=True, timeout=60
    )
    said = "this process was forked off a rank of a job, and has none of its connections"
    assert said in done.stdout, done.stderr
