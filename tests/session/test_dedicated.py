"""`omnihvd aggregator`: processes of their own, and who may use them."""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from _engine_tests.session import DedicatedGroup
from _engine_tests.transport import Transport
from aggregators import SECRET, addresses, servers
from groups import (
    Meeting,
    all_well,
    blocks_of,
    in_threads,
    leaves,
    processes,
    session,
    sum_for_ever,
    sum_of,
)
from test_strangers import ABORT, HEADER, MAGIC, VERSION, address_of, group_number

from omnihvd.engine import EngineError


def reduce(rank: int, group: Any, size: int) -> None:
    for count in (1, 1000, 300_001):
        for density in (0, 0.05, 1):
            x = blocks_of(rank, count, density)
            group.allreduce(x, x)
            np.testing.assert_array_equal(x, sum_of(size, count, density))


@pytest.mark.parametrize("aggregators, encrypt", [(1, False), (2, True)])
def test_sums_and_several_jobs(aggregators: int, encrypt: bool) -> None:
    with servers(aggregators) as started:
        for size in (3, 2):  # one job after the other
            values: dict[str, Any] = {"aggregators": addresses(started), "secret": SECRET}
            values["encrypt"] = encrypt
            all_well(in_threads(size, lambda r, g, n=size: reduce(r, g, n), "ucx", **values))
        for server in started:
            assert "sums for a group of 3 workers" in server.end()


def test_they_sum_in_the_numbers_that_the_ranks_have() -> None:
    with servers(2) as started:
        for kind in ("integer", "fpisa"):
            values: dict[str, Any] = {"aggregators": addresses(started), "secret": SECRET}
            values["arithmetic"] = kind
            all_well(in_threads(3, lambda r, g: reduce(r, g, 3), "ucx", **values))


def test_a_rank_that_leaves_is_named_by_the_aggregator() -> None:
    """Which hears of it before the others begin a sum."""

    with servers(1) as started:
        values: dict[str, Any] = {"aggregators": addresses(started), "secret": SECRET}
        first, left, last = in_threads(3, leaves(1), "ucx", **values)
    assert left is None
    said = " left the job while the others wait for its part of "
    for result in (first, last):
        assert isinstance(result, EngineError)
        assert "rank 1 (" in str(result) and said in str(result)


def test_another_secret_is_refused() -> None:
    with servers(1) as started:
        results = in_threads(
            2,
            lambda rank, group: None,
            "ucx",
            aggregators=addresses(started),
            secret="not the same secret",
        )
        for result in results:
            assert isinstance(result, EngineError)
            assert "OMNIHVD_SECRET" in str(result)
        assert "wrong secret" in started[0].end()


def test_an_aggregator_that_nobody_runs_is_named() -> None:
    # Not a port that an aggregator of another test has had: this process leaves such a one out.
    for unreachable in ("127.0.0.1:1", "no-such-host.invalid:7000"):
        results = in_threads(
            2, lambda rank, group: None, "ucx", aggregators=[unreachable], secret=SECRET
        )
        assert all(f"aggregator {unreachable}: " in str(result) for result in results), results
    assert all("; check OMNIHVD_AGGREGATORS" in str(result) for result in results), results


@pytest.mark.parametrize("bind", ["127.0.0.1:99999", "127.0.0.1:-1", "127.0.0.1", "1:2:x"])
def test_a_port_that_is_none_is_named(bind: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "omnihvd", "aggregator", "--bind", bind],
        env={**os.environ, "OMNIHVD_SECRET": SECRET},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2 and f"--bind {bind}: not HOST:PORT" in done.stderr


def talk(address: str, *messages: bytes) -> bytes:
    """Sends raw bytes; returns what comes back until the end of the connection."""
    host, port = address.split(":")
    answer = b""
    connection = socket.create_connection((host, int(port)), timeout=30)
    with connection, contextlib.suppress(ConnectionError):
        for message in messages:
            connection.sendall(message)
        connection.shutdown(socket.SHUT_WR)
        while part := connection.recv(65536):
            answer += part
    return answer


def framed(message: bytes) -> bytes:
    return struct.pack("<I", len(message)) + message


def test_strangers_at_the_door_harm_nothing() -> None:
    nonce = secrets.token_bytes(32)
    with servers(1) as started:
        address = started[0].address
        assert b"protocol" in talk(address, b"GET / HTTP/1.1\r\n\r\n")
        other = f"the job speaks protocol 1, this aggregator {session.protocol}".encode()
        assert other in talk(address, framed(b"omnihvd-join 1\n" + nonce))
        assert b"not omnihvd's protocol" in talk(address, framed(b"omnihvd-join x\n" + nonce))
        hello = f"omnihvd-join {session.protocol}\n".encode() + nonce
        assert b"another version" in talk(address, framed(hello[:-1]))
        assert b"wrong secret: the secrets differ; " in talk(
            address, framed(hello) + framed(bytes(32))
        )
        talk(address, framed(hello))
        talk(address, struct.pack("<I", 2**32 - 1))
        talk(address)
        for size in (1, 3, 4, 5, 100, 100_000):
            talk(address, secrets.token_bytes(size))
        values = {"aggregators": addresses(started), "secret": SECRET}
        all_well(in_threads(2, lambda r, g: reduce(r, g, 2), "ucx", **values))
        log = started[0].end()
    assert "another version" in log and "secrets differ" in log
    assert "wrong secret, most likely: it left at our proof; " in log
    assert " went away in the middle of a rendezvous, or was too slow" in log
    assert "Traceback" not in log


def test_strangers_do_not_fill_the_log() -> None:
    with servers(1) as started:
        for _ in range(30):
            talk(started[0].address, framed(b"omnihvd-join x\n"))
        log = started[0].end()
    assert log.count("this is not omnihvd's protocol") == 20
    assert log.count("more warnings about peers are left out for a minute") == 1


@contextlib.contextmanager
def relay(address: str, change: Callable[[int, bytes], bytes]) -> Iterator[str]:
    """Sits between a job and its aggregator, and changes the answers: (number, answer)."""

    def pass_on(worker: socket.socket, aggregator: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while part := worker.recv(65536):
                aggregator.sendall(part)
            aggregator.shutdown(socket.SHUT_RDWR)  # or serve() waits for an answer

    def serve(listener: socket.socket) -> None:
        host, port = address.split(":")
        worker, _ = listener.accept()
        aggregator = socket.create_connection((host, int(port)), timeout=30)
        with worker, aggregator, contextlib.suppress(OSError, struct.error):
            threading.Thread(target=pass_on, args=(worker, aggregator), daemon=True).start()
            answers = aggregator.makefile("rb")
            for number in range(3):
                (size,) = struct.unpack("<I", answers.read(4))
                worker.sendall(framed(change(number, answers.read(size))))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        thread.join(30)


def test_answers_that_were_changed_on_their_way_are_refused() -> None:
    """An address of his own in place of the aggregator's, say; or that it is ready."""
    his = Transport.ucx().address()
    proof = len("ok") + 32
    changes: list[Callable[[bytes], bytes]] = [
        lambda nonce: nonce[:-1] + bytes([nonce[-1] ^ 1]),
        lambda addresses: addresses[:proof] + struct.pack("<Q", len(his)) + his,
        lambda ready: b"ok" + bytes(len(ready) - 2),
    ]
    with servers(1) as started:
        for which, change in enumerate(changes):

            def changed(
                number: int, answer: bytes, which: int = which, change: Any = change
            ) -> bytes:
                return change(answer) if number == which else answer  # type: ignore[no-any-return]

            with relay(started[0].address, changed) as address:
                results = in_threads(
                    2, lambda r, g: reduce(r, g, 2), "ucx", aggregators=[address], secret=SECRET
                )
            for why in results:
                assert isinstance(why, EngineError)
                assert f"aggregator {address}: " in str(why)
                assert "changed on its way" in str(why) and "OMNIHVD_SECRET" in str(why)


def text(content: bytes) -> bytes:
    return struct.pack("<Q", len(content)) + content


def abort_with_a_token(group: int, sender: int, receiver: int) -> bytes:
    """As who has read messages that are not encrypted could make it."""
    key = hmac.digest(SECRET.encode(), text(b"group") + struct.pack("<Q", group), "sha256")
    statement = text(b"messages") + struct.pack("<5Q", group, 0, 0, sender, receiver)
    tag = hmac.digest(key, statement, "sha256")[:16]
    words = b"bow to me"
    size = HEADER.size + len(words)
    fields = (MAGIC, VERSION, ABORT, 0, 0, 0, sender, group, 0, 0, len(words), size, tag)
    return HEADER.pack(*fields) + words


@pytest.mark.parametrize("encrypt", [False, True])
def test_an_aggregator_of_this_host_gets_no_token_in_place_of_encryption(encrypt: bool) -> None:
    """The host's name has come over the network."""
    meeting, ended = Meeting(2), threading.Event()
    refused = session.stats()["messages_refused"]

    def work(rank: int, group: Any) -> None:
        if rank == 1:
            try:
                reduce(rank, group, 2)
            finally:
                ended.set()
            return
        stranger = Transport.ucx()
        peer = stranger.connect(address_of(meeting, 1))
        stranger.send(peer, [abort_with_a_token(group_number(meeting), 2, 1)], 0)
        while session.stats()["messages_refused"] == refused and not ended.is_set():
            stranger.progress()
        if encrypt:
            reduce(rank, group, 2)

    with servers(1) as started:
        values = {"aggregators": addresses(started), "secret": SECRET, "encrypt": encrypt}
        results = in_threads(2, work, "ucx", meeting=meeting, **values)
    assert results[0] is None
    assert results[1] is None if encrypt else str(results[1]) == "bow to me"


def test_a_failure_is_kept_until_the_ranks_listen() -> None:
    """They may still be joining. An aggregator forgets a failed group once it has told them."""
    ranks = [Transport.memory() for _ in range(2)]
    group = DedicatedGroup([rank.address() for rank in ranks])
    group.fail("bow to me")
    assert not group.deserted and not any(rank.progress() for rank in ranks)
    group.all_listen()
    for rank in ranks:
        rank.progress()
        (message,) = rank.take_messages()
        assert message.endswith(b"bow to me")
    assert group.deserted


def test_a_killed_aggregator_is_named() -> None:
    with servers(2) as started:
        values = {"aggregators": addresses(started), "secret": SECRET}
        with processes(2, sum_for_ever, **values) as ranks:
            ranks.gather()
            for rank in range(2):
                ranks.expect(rank, "ready")
            started[1].process.kill()
            for rank in range(2):
                why = ranks.expect(rank, "sum failed", 15)
                assert f"aggregator 1 ({started[1].address})" in why


def test_killed_aggregators_are_left_out_of_later_groups(capfd: pytest.CaptureFixture[str]) -> None:
    with servers(2) as started:
        values = {"aggregators": addresses(started), "secret": SECRET}
        all_well(in_threads(2, lambda r, g: reduce(r, g, 2), "ucx", **values))
        for server in started:
            server.process.kill()
            server.process.wait()
            all_well(in_threads(3, lambda r, g: reduce(r, g, 3), "ucx", **values))
            said = capfd.readouterr().err
            assert f"left out: aggregator {server.address}: Connection refused" in said
        assert "the ranks aggregate themselves" in said


def test_aggregators_that_do_not_answer_hold_up_no_other(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with servers(3) as started:
        values = {"aggregators": addresses(started), "secret": SECRET}
        all_well(in_threads(2, lambda r, g: reduce(r, g, 2), "ucx", **values))
        silent = started[0], started[2]
        for server in silent:
            server.process.send_signal(signal.SIGSTOP)
        all_well(in_threads(2, lambda r, g: reduce(r, g, 2), "ucx", **values))
        said = capfd.readouterr().err
        for server in silent:
            assert f"left out: aggregator {server.address}: it does not answer" in said


def test_an_aggregator_that_encrypts_sums_for_no_job_that_does_not() -> None:
    with servers(1, OMNIHVD_ENCRYPT="1") as started:
        values = {"aggregators": addresses(started), "secret": SECRET}
        for why in in_threads(2, lambda r, g: None, "ucx", **values):
            assert "OMNIHVD_ENCRYPT=1 is set here, and not on the job's ranks" in str(why)


def test_an_aggregator_that_never_was_there_is_an_error() -> None:
    with servers(1) as started:
        values = {"aggregators": [*addresses(started), "127.0.0.1:9"], "secret": SECRET}
        for result in in_threads(2, lambda r, g: None, "ucx", **values):
            assert "aggregator 127.0.0.1:9: Connection refused" in str(result)


def test_a_killed_worker_leaves_the_aggregator_working() -> None:
    with servers(1) as started:
        values = {"aggregators": addresses(started), "secret": SECRET}
        with processes(3, sum_for_ever, **values) as ranks:
            ranks.gather()
            for rank in range(3):
                ranks.expect(rank, "ready")
            ranks.processes[1].kill()
            for rank in (0, 2):
                assert "rank 1 (" in ranks.expect(rank, "sum failed", 15)
        # Not where it may have died while it wrote: what others write there waits for ever.
        for _ in range(2):
            all_well(in_threads(2, lambda r, g: reduce(r, g, 2), "ucx", **values))
        assert started[0].end().count("new groups get new threads") == 1
