"""`omnihvd aggregator`: processes of their own, and who may use them."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import struct
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from aggregators import SECRET, addresses, servers
from groups import all_well, blocks_of, in_threads, processes, session, sum_of

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
            if encrypt:  # inside this host, too
                values.update(authenticate=session.Authenticate.all, encrypt=True)
            all_well(in_threads(size, lambda r, g, n=size: reduce(r, g, n), "ucx", **values))
        for server in started:
            assert "sums for a group of 3 workers" in server.end()


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
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = "127.0.0.1:{}".format(*closed.getsockname()[1:])
    for unreachable in (address, "no-such-host.invalid:7000"):
        results = in_threads(
            2, lambda rank, group: None, "ucx", aggregators=[unreachable], secret=SECRET
        )
        assert all(f"aggregator {unreachable}: " in str(result) for result in results), results


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
        assert b"version" in talk(address, framed(b"omnihvd-join 2\n" + nonce))
        assert b"secrets differ" in talk(
            address, framed(b"omnihvd-join 1\n" + nonce) + framed(bytes(32))
        )
        talk(address, struct.pack("<I", 2**32 - 1))
        talk(address)
        for size in (1, 3, 4, 5, 100, 100_000):
            talk(address, secrets.token_bytes(size))
        values = {"aggregators": addresses(started), "secret": SECRET}
        all_well(in_threads(2, lambda r, g: reduce(r, g, 2), "ucx", **values))
        log = started[0].end()
    assert "another version" in log and "secrets differ" in log
    assert "Traceback" not in log


def _reduce_for_ever(rank: int, size: int, group: Any, pipe: Any) -> None:
    pipe.send(("ready", None))
    try:
        while True:
            x = blocks_of(rank, 1_000_000, 1)
            group.allreduce(x, x)
    except EngineError as why:
        pipe.send(("failed allreduce", str(why)))


def test_a_killed_aggregator_is_named() -> None:
    with servers(2) as started:
        values = {"aggregators": addresses(started), "secret": SECRET}
        with processes(2, _reduce_for_ever, **values) as ranks:
            ranks.gather()
            for rank in range(2):
                ranks.expect(rank, "ready")
            started[1].process.kill()
            for rank in range(2):
                why = ranks.expect(rank, "failed allreduce", 15)
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


def test_an_aggregator_that_never_was_there_is_an_error() -> None:
    with servers(1) as started:
        values = {"aggregators": [*addresses(started), "127.0.0.1:9"], "secret": SECRET}
        for result in in_threads(2, lambda r, g: None, "ucx", **values):
            assert "aggregator 127.0.0.1:9: Connection refused" in str(result)


def test_a_killed_worker_leaves_the_aggregator_working() -> None:
    with servers(1) as started:
        values = {"aggregators": addresses(started), "secret": SECRET}
        with processes(3, _reduce_for_ever, **values) as ranks:
            ranks.gather()
            for rank in range(3):
                ranks.expect(rank, "ready")
            ranks.processes[1].kill()
            for rank in (0, 2):
                assert "rank 1 (" in ranks.expect(rank, "failed allreduce", 15)
        # Not where it may have died while it wrote: what others write there waits for ever.
        for _ in range(2):
            all_well(in_threads(2, lambda r, g: reduce(r, g, 2), "ucx", **values))
        assert started[0].end().count("new groups get new threads") == 1
