"""Strangers that hold connections to a dedicated aggregator, and descriptors that run out."""

from __future__ import annotations

import contextlib
import resource
import select
import socket
import struct
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import _engine_tests
import numpy as np
import pytest
from aggregators import SECRET, Server, servers
from groups import Meeting, all_well, blocks_of, settings, sum_of

from omnihvd.engine import EngineError

DESCRIPTORS = 160


@contextlib.contextmanager
def few_descriptors(soft: int) -> Iterator[None]:
    """For processes that are started inside."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def limit(server: Server, most: int) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (most, hard))


@pytest.fixture
def strangers() -> Iterator[list[socket.socket]]:
    held: list[socket.socket] = []
    yield held
    for connection in held:
        connection.close()


def come_in(server: Server, count: int, held: list[socket.socket]) -> None:
    """As one that begins as a rank does, and then says nothing."""
    host, port = server.address.split(":")
    for _ in range(count):
        held.append(socket.create_connection((host, int(port)), timeout=20))
        held[-1].sendall(struct.pack("<I", 64) + b"omnihvd-join ")


def held_by(server: Server) -> int:
    return len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))


def a_job(server: Server, engines: Any = None) -> list[Any]:
    def work(rank: int) -> None:
        group = engines[rank].join(rank, 2, meeting.allgather(rank))
        x = blocks_of(rank, 5000, 0.1)
        group.allreduce(x, x)
        np.testing.assert_array_equal(x, sum_of(2, 5000, 0.1))

    meeting = Meeting(2)
    engines = engines or two_engines(server)
    with ThreadPoolExecutor() as threads:
        return [ranks.exception(60) for ranks in [threads.submit(work, rank) for rank in range(2)]]


def two_engines(server: Server) -> list[Any]:
    values = settings(aggregators=[server.address], secret=SECRET, timeout_s=30)
    return [_engine_tests.session.engine(values, "ucx") for _ in range(2)]


def test_strangers_that_say_nothing_leave_room_for_jobs(strangers: list[socket.socket]) -> None:
    with servers(1) as (server,):
        limit(server, DESCRIPTORS)
        before = held_by(server)
        come_in(server, 2 * DESCRIPTORS, strangers)
        all_well(a_job(server))
        assert held_by(server) < before + 64 + 40
        hung_up_on = select.select(strangers, [], [], 0)[0]
        assert len(hung_up_on) >= 2 * DESCRIPTORS - 64, "the oldest give way"
        until = time.monotonic() + 20
        while len(hung_up_on) < 2 * DESCRIPTORS and time.monotonic() < until:
            hung_up_on = select.select(strangers, [], [], 1)[0]
        assert len(hung_up_on) == 2 * DESCRIPTORS, "nobody stays for long"
        assert server.end().count("\n") < 100, "nor do they fill the log"


def test_an_aggregator_without_descriptors_says_so() -> None:
    with servers(1) as (server,):
        limit(server, held_by(server))
        for why in a_job(server):
            assert isinstance(why, EngineError)
            assert f"aggregator {server.address}: " in str(why) and "(ulimit -n)" in str(why)
        limit(server, 256)
        all_well(a_job(server))


def test_an_aggregator_raises_its_soft_limit() -> None:
    with few_descriptors(128), servers(1) as (server,):
        soft, hard = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)
        assert soft == min(hard, 1 << 20) > 128


def test_a_rank_without_descriptors_leaves_no_living_aggregator_out() -> None:
    """A lack in this process says nothing of another one."""
    with servers(1) as (server,):
        engines = two_engines(server)
        all_well(a_job(server, engines))
        with few_descriptors(3):
            for why in a_job(server, engines):
                assert f"{server.address} cannot be asked: no file descriptors" in str(why)
        all_well(a_job(server, engines))
        assert server.end().count("sums for a group of 2 workers") == 2
