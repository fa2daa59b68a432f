"""Groups of engines without MPI: in threads of this process, or in processes of their own."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import threading
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

import _engine_tests
import numpy as np

from omnihvd.engine import EngineError, session

PATIENCE_S = 60


class Meeting:
    """An allgather between threads. Keeps the rounds, for tests that listen in."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.rounds: list[list[bytes]] = []
        self._said: list[bytes] = [b""] * size
        self._barrier = threading.Barrier(size, timeout=PATIENCE_S)

    def allgather(self, rank: int) -> Callable[[bytes], list[bytes]]:
        def gather(mine: bytes) -> list[bytes]:
            self._said[rank] = mine
            if self._barrier.wait() == 0:
                self.rounds.append(list(self._said))
            self._barrier.wait()
            said = list(self._said)
            self._barrier.wait()
            return said

        return gather

    def abort(self) -> None:
        self._barrier.abort()


def settings(**values: Any) -> Any:
    made = session.Settings()
    for name, value in values.items():
        setattr(made, name, value)
    return made


@contextlib.contextmanager
def log_level(level: str) -> Iterator[None]:
    """For this process, until another engine is made: the level is that of the last one."""
    engine = _engine_tests.session.engine
    engine(settings(log=level), "memory")
    try:
        yield
    finally:
        engine(settings(), "memory")


def greetings(monkeypatch: Any, name: str, *values: str) -> list[bytes]:
    """Ranks with these values of a setting."""
    import pytest  # the processes of ranks do without it

    said: list[bytes] = []

    def listen(mine: bytes) -> list[bytes]:
        said.append(mine)
        raise EngineError("heard")

    for value in values:
        monkeypatch.setenv(name, value)
        with pytest.raises(EngineError, match="heard"):
            session.Communicator(0, 1).meet(listen)
    return said


class OnHosts:
    """A rank of a communicator, in a process of its own; its host has a letter of `hosts`."""

    def __init__(self, rank: int, hosts: str, allgather: Any) -> None:
        os.environ.update(OMNIHVD_HOST_ID=hosts[rank], OMNIHVD_WAY="stream", OMNIHVD_MIN_BYTES="1")
        self.library = types.SimpleNamespace(allgather=allgather)
        self.sums = session.Communicator(rank, len(hosts))
        self.sums.meet(allgather)

    def allreduce(self, x: np.ndarray) -> None:
        self.sums.sum(x.ctypes.data, x.size, str(x.dtype), self.library)


def join(rank: int, size: int, allgather: Any, transport: str, **values: Any) -> Any:
    """A group of an engine. With "shared" or "small" memory or "direct" connections as transport,
    what sums so; with "hosts aabb", ranks on the hosts of these letters."""
    if transport.startswith("hosts "):
        return OnHosts(rank, transport.split()[1], allgather)
    if transport == "shared":
        return _engine_tests.shared.SharedSum(settings(**values), rank, size, allgather)
    if transport == "small":
        return _engine_tests.shared.SmallSum(settings(**values), rank, size, allgather)
    if transport == "direct":
        return _engine_tests.direct.DirectSum(settings(**values), rank, size, allgather)
    return _engine_tests.session.engine(settings(**values), transport).join(rank, size, allgather)


def in_threads(
    size: int,
    work: Callable[[int, Any], Any],
    transport: str = "memory",
    meeting: Meeting | None = None,
    **values: Any,
) -> list[Any]:
    """Runs work(rank, group) on each rank; returns what it returned, or the exception."""
    values.setdefault("timeout_s", PATIENCE_S / 2)  # when one rank fails, the others must not wait
    meeting = meeting or Meeting(size)
    results: list[Any] = [None] * size

    def run(rank: int) -> None:
        try:
            group = join(rank, size, meeting.allgather(rank), transport, **values)
            results[rank] = work(rank, group)
        except BaseException as why:  # handed to the test; pytest.raises() throws no Exception
            results[rank] = why

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert not any(thread.is_alive() for thread in threads), "a rank hangs"
    return results


def all_well(results: list[Any]) -> list[Any]:
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


Work = Callable[[int, int, Any, Any], None]  # rank, size, group, connection to the test


def allgather_over(pipe: Any) -> Callable[[bytes], list[bytes]]:
    """An allgather that the test serves, by Processes.gather() or serve()."""

    def allgather(mine: bytes) -> list[bytes]:
        pipe.send(("gather", mine))
        said: list[bytes] = pipe.recv()
        return said

    return allgather


def _process(
    work: Work, rank: int, size: int, transport: str, values: dict[str, Any], pipe: Any
) -> None:
    try:
        group = join(rank, size, allgather_over(pipe), transport, **values)
        if transport == "direct":
            pipe.send(("joined", None))
        work(rank, size, group, pipe)
        pipe.send(("done", None))
    except Exception as why:
        pipe.send(("failed", str(why)))
    pipe.recv()  # until the test has seen all


class Processes:
    """Ranks in processes. work must be a function of a module."""

    def __init__(self, size: int, work: Work, transport: str = "ucx", **values: Any) -> None:
        memory = transport in ("shared", "small")
        self.rounds = 5 if memory else 3  # allgathers in which a group is made
        self.direct = transport == "direct"  # in as many as it takes
        spawn = multiprocessing.get_context("spawn")
        pairs = [spawn.Pipe() for _ in range(size)]
        self.pipes = [ours for ours, _ in pairs]
        self.processes = [
            spawn.Process(
                target=_process, args=(work, rank, size, transport, values, theirs), daemon=True
            )
            for rank, (_, theirs) in enumerate(pairs)
        ]
        for process in self.processes:
            process.start()
        for _, theirs in pairs:
            theirs.close()

    def gather(self, rounds: int | None = None) -> None:
        """Serves the allgathers in which the group is made."""
        if self.direct:
            self.serve("joined")
            return
        for _ in range(rounds or self.rounds):
            said = [self.expect(rank, "gather") for rank in range(len(self.pipes))]
            for pipe in self.pipes:
                pipe.send(said)

    def serve(self, kind: str) -> list[Any]:
        """Serves allgathers until each rank says something of this kind, which it returns."""
        while True:
            assert all(pipe.poll(PATIENCE_S) for pipe in self.pipes), "a rank says nothing"
            said = [pipe.recv() for pipe in self.pipes]
            if {got for got, _ in said} != {"gather"}:
                assert {got for got, _ in said} == {kind}, said
                return [content for _, content in said]
            for pipe in self.pipes:
                pipe.send([content for _, content in said])

    def expect(self, rank: int, kind: str, patience: float = PATIENCE_S) -> Any:
        """The next message of this rank, which must be of this kind."""
        assert self.pipes[rank].poll(patience), f"rank {rank} says nothing"
        got, content = self.pipes[rank].recv()
        assert got == kind, f"rank {rank}: {got} {content}"
        return content

    def go_on(self) -> None:
        """Ends a rank's pipe.recv()."""
        for pipe in self.pipes:
            with contextlib.suppress(OSError):
                pipe.send(None)

    def end(self) -> None:
        self.go_on()
        for process in self.processes:
            process.join(10)
            process.kill()


@contextlib.contextmanager
def processes(size: int, work: Work, transport: str = "ucx", **values: Any) -> Iterator[Processes]:
    ranks = Processes(size, work, transport, **values)
    try:
        yield ranks
    finally:
        ranks.end()


def leaves(leaver: int, count: int = 60_000) -> Callable[[int, Any], None]:
    """For in_threads: two sums of float32; one rank leaves in between."""

    def work(rank: int, group: Any) -> None:
        x = np.ones(count, np.float32)
        group.allreduce(x, x)
        if rank == leaver:
            return
        time.sleep(0.5)
        group.allreduce(x, x)

    return work


def blocks_of(
    rank: int, count: int, density: float, dtype: str = "float32", block: int = 256
) -> np.ndarray:
    """A tensor with about this share of its blocks non-zero, values unique per rank and index.

    Sums over a few ranks are exact in every dtype but the narrow ones, which wrap or round as
    NumPy's do.
    """
    index = np.arange(count, dtype=np.int64)
    keep = np.random.default_rng(1000 + rank).random(-(-count // block)) < density
    values = (index * 7 + rank * 31) % 97 + 1
    return np.where(np.repeat(keep, block)[:count], values, 0).astype(dtype)


def sum_of(size: int, count: int, density: float, dtype: str = "float32") -> np.ndarray:
    parts = [blocks_of(rank, count, density, dtype) for rank in range(size)]
    return np.sum(parts, axis=0, dtype=parts[0].dtype)


def until_failure(step: Callable[[], Any], pipe: Any) -> None:
    """Says "ready" before the first sum, and why one failed. The group stays failed, at once: else
    nothing is said."""
    pipe.send(("ready", None))
    try:
        while True:
            step()
    except EngineError as why:
        first = str(why)
    try:
        step()
    except EngineError:
        pipe.send(("sum failed", first))


def sum_for_ever(rank: int, size: int, group: Any, pipe: Any) -> None:
    """The work of a process."""

    def step() -> None:
        x = blocks_of(rank, 500_000, 1)
        group.allreduce(x, x)

    until_failure(step, pipe)


def small_for_ever(rank: int, size: int, group: Any, pipe: Any) -> None:
    x = blocks_of(rank, 50_000, 1)
    until_failure(lambda: group.allreduce(x, x), pipe)


def scatter_for_ever(rank: int, size: int, group: Any, pipe: Any) -> None:
    x, out = blocks_of(rank, size * 300_000, 1), np.empty(300_000, np.float32)
    until_failure(lambda: group.reduce_scatter(x, out, [300_000] * size), pipe)
