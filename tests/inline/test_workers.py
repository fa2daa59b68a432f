"""Workers in processes and threads of their own sum through an aggregator at a socket."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from omnihvd import inline
from omnihvd.engine import EngineError
from omnihvd.inline.aggregator import Aggregator, running

SECRET = "the secret of a test"
HOST = "127.0.0.1"
CONTRIBUTION, RESULT = 1, 2  # kinds of datagrams


@pytest.fixture
def aggregator() -> Iterator[Aggregator]:
    with running(Aggregator(SECRET, host=HOST, port=0, jobs=2, slots=16)) as made:
        yield made


def port_of(aggregator: Aggregator) -> int:
    return int(aggregator.address.rsplit(":", 1)[1])


def together(functions: list[Callable[[], None]]) -> None:
    failures: list[BaseException] = []

    def run(function: Callable[[], None]) -> None:
        try:
            function()
        except BaseException as why:
            failures.append(why)

    threads = [threading.Thread(target=run, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def values(rank: int, count: int) -> np.ndarray:
    """One of each three blocks is this rank's, and one is of all ranks."""
    blocks = np.arange(count) // 256
    keep = (blocks % 3 == rank % 3) | (blocks % 7 == 0)
    return np.where(keep, np.arange(count) * (rank + 1) + 1, 0).astype(np.int32)


def sum_in_turn(
    port: int, rank: int, ranks: int, session: int, dense: bool, dtype: type = np.int32
) -> None:
    with inline.Worker(HOST, port, rank=rank, ranks=ranks, session=session, secret=SECRET) as one:
        for count in (1, 0, 256, 10_001, 65_537):
            mine = values(rank, count).astype(dtype)
            one.sum(mine, dense)
            assert np.array_equal(mine, sum(values(r, count) for r in range(ranks)))


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize(("ranks", "dtype"), [(1, np.int32), (3, np.int32), (3, np.float32)])
def test_sums(aggregator: Aggregator, ranks: int, dtype: type, dense: bool) -> None:
    port = port_of(aggregator)
    jobs = [(rank, session) for rank in range(ranks) for session in (1, 2)]  # at once
    together([lambda r=r, s=s: sum_in_turn(port, r, ranks, s, dense, dtype) for r, s in jobs])
    counts = aggregator.counts()
    assert counts["taken"] and not counts["forged"] and not counts["impossible"]
    sum_in_turn(port, 0, 1, 3, dense)  # there is room again


@pytest.mark.parametrize(
    "other", [np.ones(10_002, np.float32), np.ones(10_001, np.int32), np.zeros(0, np.float32)]
)
@pytest.mark.parametrize("slots", [1, 16])
def test_workers_with_other_tensors_fail_alike(other: np.ndarray, slots: int) -> None:
    tensors = [np.zeros(10_001, np.float32), other, np.ones(10_001, np.float32)]

    def work(rank: int) -> None:
        with inline.Worker(HOST, port, rank=rank, ranks=3, session=5, secret=SECRET) as one:
            one.sum(np.full(300, rank + 1, np.int32))
            with pytest.raises(EngineError, match="a tensor of another size or dtype from another"):
                one.sum(tensors[rank])

    with running(Aggregator(SECRET, host=HOST, port=0, slots=slots)) as aggregator:
        port = port_of(aggregator)
        together([functools.partial(work, rank) for rank in range(3)])


def test_datagrams_of_others_have_no_effect(aggregator: Aggregator) -> None:
    port, stop = port_of(aggregator), threading.Event()
    random = np.random.default_rng(7)

    def disturb() -> None:
        with socket.socket(type=socket.SOCK_DGRAM) as stranger:
            while not stop.is_set():
                datagram = bytearray(random.bytes(int(random.choice([0, 9, 32, 40, 1056, 2000]))))
                if len(datagram) > 12 and random.random() < 0.8:
                    datagram[8] = random.integers(0, 8)
                    datagram[9] = len(datagram) == 1056
                    datagram[10:12] = b"\0\0"
                stranger.sendto(datagram, (HOST, port))
                stop.wait(0.0002)

    stranger = threading.Thread(target=disturb)
    stranger.start()
    try:
        for session in range(50):
            both = [functools.partial(sum_in_turn, port, r, 2, session, False) for r in range(2)]
            together(both)
            if aggregator.counts()["forged"] and aggregator.counts()["short"]:
                break
    finally:
        stop.set()
        stranger.join()
    counts = aggregator.counts()
    assert counts["forged"] and counts["short"] and not counts["impossible"]


def test_too_many_jobs_and_other_numbers_of_workers_are_refused(aggregator: Aggregator) -> None:
    port = port_of(aggregator)

    def worker(session: int, ranks: int = 1) -> inline.Worker:
        return inline.Worker(HOST, port, rank=0, ranks=ranks, session=session, secret=SECRET)

    with worker(1), worker(2):
        with pytest.raises(EngineError, match=r"as many jobs as it takes \(--jobs\), and none"):
            worker(3)
        with pytest.raises(EngineError, match="another number of workers"):
            worker(2, ranks=2)
    with pytest.raises(EngineError, match="a job has 1 to 32 workers for in-network aggregation"):
        worker(4, ranks=33)


def test_another_secret_is_named(aggregator: Aggregator) -> None:
    with pytest.raises(EngineError, match="start it with the same secret, and let UDP"):
        inline.Worker(
            HOST, port_of(aggregator), rank=0, ranks=1, session=1, secret="no", patience_s=0.3
        )


@pytest.mark.parametrize(
    "wrong", [np.zeros(4, np.int64), np.zeros((4, 4), np.int32)[:, 1], np.zeros(4, np.float64)]
)
def test_other_arrays_are_refused(aggregator: Aggregator, wrong: np.ndarray) -> None:
    port = port_of(aggregator)
    one = inline.Worker(HOST, port, rank=0, ranks=1, session=1, secret=SECRET)
    with one, pytest.raises(ValueError, match=r"float32.*C-contiguous"):
        one.sum(wrong)


@contextlib.contextmanager
def relay(port: int, lost: int) -> Iterator[int]:
    """The port of a relay between a worker and the aggregator at `port`, through which no datagram
    of the kind `lost` goes."""
    with socket.socket(type=socket.SOCK_DGRAM) as here, socket.socket(type=socket.SOCK_DGRAM) as up:
        here.bind((HOST, 0))
        up.connect((HOST, port))
        stop, at = threading.Event(), [("", 0)]

        def carry() -> None:
            while not stop.is_set():
                ready, _, _ = select.select([here, up], [], [], 0.05)
                if here in ready:
                    datagram, at[0] = here.recvfrom(2000)
                    if datagram[8] != lost:
                        up.send(datagram)
                if up in ready:
                    datagram = up.recv(2000)
                    if datagram[8] != lost:
                        here.sendto(datagram, at[0])

        thread = threading.Thread(target=carry)
        thread.start()
        try:
            yield here.getsockname()[1]
        finally:
            stop.set()
            thread.join()


def test_results_that_do_not_come_through_are_named(aggregator: Aggregator) -> None:
    with relay(port_of(aggregator), RESULT) as port:
        one = inline.Worker(HOST, port, rank=0, ranks=1, session=6, secret=SECRET, patience_s=0.5)
        with pytest.raises(EngineError, match="sends results, but none arrives"):
            one.sum(np.ones(300, np.int32))


def test_who_waits_for_others_waits(aggregator: Aggregator) -> None:
    port = port_of(aggregator)

    def late(rank: int) -> None:
        with inline.Worker(
            HOST, port, rank=rank, ranks=2, session=7, secret=SECRET, patience_s=0.5
        ) as one:
            time.sleep(1.2 * rank)
            mine = np.ones(300, np.int32)
            one.sum(mine)
            assert (mine == 2).all()

    together([functools.partial(late, rank) for rank in range(2)])


def test_a_port_that_is_closed_for_a_moment_ends_no_sum(aggregator: Aggregator) -> None:
    """As while a process is restarted there; and anyone can forge such a report."""
    above, stop = (HOST, port_of(aggregator)), threading.Event()

    def bound(port: int = 0) -> socket.socket:
        made = socket.socket(type=socket.SOCK_DGRAM)
        made.bind((HOST, port))
        return made

    here = bound()
    port = here.getsockname()[1]

    def serve() -> None:
        nonlocal here
        closed, worker = False, above
        while not stop.is_set():
            if not select.select([here], [], [], 0.05)[0]:
                continue
            datagram, source = here.recvfrom(2000)
            if source != above:
                worker = source
                here.sendto(datagram, above)
            elif datagram[8] == RESULT and not closed:  # it is to make the worker send
                here.close()
                with bound() as other:
                    other.sendto(datagram, worker)
                time.sleep(0.04)
                here, closed = bound(port), True
            else:
                here.sendto(datagram, worker)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with inline.Worker(HOST, port, rank=0, ranks=1, session=6, secret=SECRET) as one:
            mine = np.arange(30_000, dtype=np.int32)
            one.sum(mine)
            assert np.array_equal(mine, np.arange(30_000))
    finally:
        stop.set()
        thread.join()
        here.close()


DYING = """
import os, sys, numpy as np
from omnihvd import inline
one = inline.Worker("127.0.0.1", int(sys.argv[1]), rank=1, ranks=3, session=9, secret=sys.argv[2])
print("joined", flush=True)
one.sum(np.ones(300, np.int32))
os._exit(0)
"""


def test_a_worker_that_ended_without_leaving_is_named(aggregator: Aggregator) -> None:
    port = port_of(aggregator)

    def survivor(rank: int) -> None:
        one = inline.Worker(
            HOST, port, rank=rank, ranks=3, session=9, secret=SECRET, workers_patience_s=1.5
        )
        mine = np.ones(300, np.int32)
        one.sum(mine)
        assert (mine == 3).all()
        begun = time.monotonic()
        said = r"no result for [12]\.\d* s \(workers_patience_s is 1.5\): it waits for rank 1\. If "
        with pytest.raises(EngineError, match=rf"rank {rank}: .*{said}"):
            one.sum(mine)
        assert 1.4 < time.monotonic() - begun < 10
        with pytest.raises(EngineError, match="waits for rank 1"):
            one.sum(mine)  # at once: the job cannot go on

    words = [sys.executable, "-c", DYING, str(port), SECRET]
    dying = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert dying.stdout
    try:
        assert dying.stdout.readline() == "joined\n"
        together([functools.partial(survivor, rank) for rank in (0, 2)])
    finally:
        dying.kill()
        dying.communicate()


WAITING = """
import os, signal, sys, numpy as np
from omnihvd import inline
port, secret, session, rank, ranks, patience = *sys.argv[1:3], *map(float, sys.argv[3:])
signal.signal(signal.SIGUSR1, lambda *_: print("a handler ran", flush=True))
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
one = inline.Worker(
    "127.0.0.1", int(port), rank=int(rank), ranks=int(ranks), session=int(session), secret=secret,
    patience_s=patience,
)
print("joined", flush=True)
mine = np.full(300, rank + 1, np.float32)
try:
    one.sum(mine)
    print("sum", mine[0], flush=True)
except BaseException as why:
    print(type(why).__name__, why, flush=True)
"""


@contextlib.contextmanager
def waiting(
    port: int, rank: int = 0, ranks: int = 2, session: int = 9, patience_s: float = 15
) -> Iterator[subprocess.Popen[str]]:
    """A process with a worker that has joined, and makes a sum."""
    words = [sys.executable, "-c", WAITING, port, SECRET, session, rank, ranks, patience_s]
    process = subprocess.Popen(list(map(str, words)), stdout=subprocess.PIPE, text=True)
    assert process.stdout
    try:
        assert process.stdout.readline() == "joined\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def said_next(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    ready, _, _ = select.select([process.stdout], [], [], 20)
    assert ready, "it says nothing"
    return process.stdout.readline().strip()


def sum_with(port: int, of: float) -> None:
    """As rank 1, to end what a waiting process has begun."""
    with inline.Worker(HOST, port, rank=1, ranks=2, session=9, secret=SECRET) as other:
        mine = np.full(300, 2, np.float32)
        other.sum(mine)
        assert (mine == of).all()


def test_a_worker_that_was_stopped_goes_on(aggregator: Aggregator) -> None:
    port = port_of(aggregator)
    with waiting(port, patience_s=0.5) as stopped:
        time.sleep(0.2)
        stopped.send_signal(signal.SIGSTOP)
        time.sleep(2)
        stopped.send_signal(signal.SIGCONT)
        time.sleep(1)  # it asks, and hears that the aggregator is there
        sum_with(port, 3)
        assert said_next(stopped) == "sum 3.0"


def test_handlers_of_signals_run_while_a_sum_waits(aggregator: Aggregator) -> None:
    port = port_of(aggregator)
    with waiting(port) as process:
        time.sleep(0.3)
        process.send_signal(signal.SIGUSR1)
        assert said_next(process) == "a handler ran"
        sum_with(port, 3)
        assert said_next(process) == "sum 3.0"
    with waiting(port, session=10) as process:
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        assert said_next(process).startswith("KeyboardInterrupt")


def test_a_worker_that_waits_for_its_aggregator_can_be_interrupted() -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as silent:
        silent.bind((HOST, 0))
        before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("interrupted"))
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            begun = time.monotonic()
            with pytest.raises(pytest.fail.Exception, match="interrupted"):
                inline.Worker(
                    HOST, silent.getsockname()[1], rank=0, ranks=1, session=1, secret=SECRET
                )
            assert time.monotonic() - begun < 10
        finally:
            signal.signal(signal.SIGALRM, before)


def test_the_place_of_a_killed_job_is_free_at_once_and_of_no_other(aggregator: Aggregator) -> None:
    """There are two places."""
    port = port_of(aggregator)

    def worker(session: int) -> inline.Worker:
        return inline.Worker(HOST, port, rank=0, ranks=1, session=session, secret=SECRET)

    with worker(1) as silent, contextlib.ExitStack() as both:
        killed = [both.enter_context(waiting(port, rank, 3)) for rank in range(2)]
        killed[0].kill()
        killed[0].wait()
        with pytest.raises(EngineError, match=r"\(--jobs\), and none of them has ended"):
            worker(2)  # a worker of that job lives
        killed[1].kill()
        killed[1].wait()
        for session in (3, 4):
            with worker(session) as one:
                mine = np.arange(300, dtype=np.int32)
                one.sum(mine)
                assert np.array_equal(mine, np.arange(300))
        silent.sum(mine)
        assert np.array_equal(mine, np.arange(300))


def test_a_worker_that_does_not_get_through_is_told_so(aggregator: Aggregator) -> None:
    with relay(port_of(aggregator), CONTRIBUTION) as port:
        one = inline.Worker(
            HOST, port, rank=0, ranks=1, session=6, secret=SECRET, workers_patience_s=1.0
        )
        with pytest.raises(EngineError, match="it waits for this worker: its datagrams"):
            one.sum(np.ones(300, np.int32))


@contextlib.contextmanager
def command(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "omnihvd", "aggregator", *arguments],
        env={**os.environ, "OMNIHVD_SECRET": SECRET},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


FAILING = """
import sys
from omnihvd import aggregator, inline
from omnihvd.inline.aggregator import Aggregator
def fail(self): raise MemoryError("no memory")
Aggregator.run = fail
sys.exit(aggregator.main(["--udp", "127.0.0.1:0"]))
"""


def test_an_aggregator_that_fails_ends_and_says_why() -> None:
    """Instead of a process that answers nobody."""
    ended = subprocess.run(
        [sys.executable, "-c", FAILING],
        env={**os.environ, "OMNIHVD_SECRET": SECRET},
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert ended.returncode == 1, ended.stderr
    assert re.search(r"127.0.0.1:0: it can sum no longer: no memory$", ended.stderr.strip())


def test_the_command_sums_and_says_what_it_did() -> None:
    with command("--udp", f"{HOST}:0") as process:
        assert process.stdout and process.stderr
        port = int(process.stdout.readline().rsplit(":", 1)[1])
        together([lambda r=rank: sum_in_turn(port, r, 2, 5, False) for rank in range(2)])
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
        assert process.stdout.readline().startswith("taken ")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_an_aggregator_that_is_gone_ends_sums(number: int) -> None:
    with command("--udp", f"{HOST}:0") as process:
        assert process.stdout
        port = int(process.stdout.readline().rsplit(":", 1)[1])
        one = inline.Worker(HOST, port, rank=0, ranks=2, session=5, secret=SECRET, patience_s=1.0)
        threading.Timer(0.2, lambda: process.send_signal(number)).start()
        why = r"rank 0: .* (has ended|has sent nothing for too long: is its host up)"
        with pytest.raises(EngineError, match=why):
            one.sum(np.ones(300, np.int32))  # of two workers, the other is not there
        with pytest.raises(EngineError):
            one.sum(np.ones(300, np.int32))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--udp", "127.0.0.1"], "not HOST:PORT, with a port from 0 to 65535"),
        (["--udp", "nowhere:0"], "no IPv4 address: in-network aggregation supports IPv4 only"),
        (
            ["--udp", "127.0.0.1:0", "--group", "10.0.0.1"],
            "no multicast address: those are 224.0.0.0",
        ),
        (["--udp", "127.0.0.1:0", "--slots", "0"], "not from 1 to 65535"),
        (["--udp", "192.0.2.1:0"], "Cannot assign requested address"),
    ],
)
def test_the_command_says_what_is_wrong(arguments: list[str], said: str) -> None:
    with command(*arguments) as process:
        _, error = process.communicate(timeout=20)
    assert process.returncode in (1, 2) and said in error.splitlines()[-1]
