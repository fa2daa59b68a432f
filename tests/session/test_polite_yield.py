"""Polling threads of other libraries sleep instead, on a library compiled here."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from _engine_tests import session
from test_got_hook import build

from omnihvd import _engine, engine
from omnihvd.intercept.waiting import FUNCTION, REPLACEMENT, SHORTER_SLEEP, SLEEP

POLLER = """
#include <sched.h>
#include <time.h>
volatile int done;
void poll_until_done(void) { while (!done) sched_yield(); }
volatile int computed;
void compute(void) { while (!computed) {} }
void sleep_ms(long ms) { struct timespec t = {ms / 1000, ms % 1000 * 1000000}; nanosleep(&t, 0); }
"""


def processor_seconds_of_a_wait(poller: ctypes.CDLL, seconds: float) -> float:
    ctypes.c_int.in_dll(poller, "done").value = 0
    used: list[float] = []

    def wait() -> None:
        before = time.thread_time()
        poller.poll_until_done()
        used.append(time.thread_time() - before)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(seconds)
    ctypes.c_int.in_dll(poller, "done").value = 1
    thread.join(10)
    assert not thread.is_alive()
    return used[0]


@contextlib.contextmanager
def hooked(tmp_path: Path) -> Iterator[ctypes.CDLL]:
    path = build(tmp_path, "poller", POLLER)
    poller = ctypes.CDLL(path)
    before = engine.session.stats()["naps"]
    assert processor_seconds_of_a_wait(poller, 0.1) > 0
    assert engine.session.stats()["naps"] == before
    assert _engine.hook.install(path, FUNCTION, str(engine.LIBRARY), REPLACEMENT) == [path]
    try:
        yield poller
    finally:
        _engine.hook.remove(FUNCTION)


def test_a_polling_thread_sleeps(tmp_path: Path) -> None:
    with hooked(tmp_path) as poller:
        before = engine.session.stats()
        used = processor_seconds_of_a_wait(poller, 0.5)
        after = engine.session.stats()
    assert after["naps"] > before["naps"]
    slept = after["nap_seconds"] - before["nap_seconds"]
    assert slept > 0.3  # of the half second
    assert used < 0.2


def test_a_short_wait_takes_no_nap(tmp_path: Path) -> None:
    """MPI's small sums are many of them. Some here may last longer than 4 ms, on a busy machine."""
    with hooked(tmp_path) as poller:
        naps = []
        for _ in range(50):
            before = engine.session.stats()["naps"]
            processor_seconds_of_a_wait(poller, 0.001)
            naps.append(engine.session.stats()["naps"] - before)
    assert naps.count(0) > 5, naps


def test_beside_a_thread_that_computes_short_waits_nap(tmp_path: Path) -> None:
    cores = os.sched_getaffinity(0)

    def compute() -> None:
        os.sched_setaffinity(0, {min(cores)})
        poller.compute()

    with hooked(tmp_path) as poller:
        computed = ctypes.c_int.in_dll(poller, "computed")
        busy = threading.Thread(target=compute)
        naps = []

        def wait() -> None:
            os.sched_setaffinity(0, {min(cores)})
            done = ctypes.c_int.in_dll(poller, "done")
            for _ in range(50):
                done.value = 0
                threading.Timer(0.005, lambda: setattr(done, "value", 1)).start()
                before = engine.session.stats()["naps"]
                poller.poll_until_done()
                naps.append(engine.session.stats()["naps"] - before)

        waiting = threading.Thread(target=wait)
        busy.start()
        waiting.start()
        waiting.join(60)
        computed.value = 1
        busy.join(10)
        assert not waiting.is_alive()
    # A yield takes a slice of 3 ms. Without memory of it the next one takes the rest of the wait.
    assert sum(taken > 2 for taken in naps) > 2, naps


def test_while_another_thread_sums_it_hardly_wakes_up(tmp_path: Path) -> None:
    with hooked(tmp_path) as poller, session.AsThoughSumming():
        before, start = engine.session.stats()["naps"], time.monotonic()
        processor_seconds_of_a_wait(poller, 0.5)
        naps = engine.session.stats()["naps"] - before
        waited = time.monotonic() - start
    assert 0 < naps < waited / 0.005 + 50  # of 5 ms, the first of less; else they are 1000


def test_who_makes_a_sum_does_not_wait_for_its_end(tmp_path: Path) -> None:
    with hooked(tmp_path) as poller, session.AsThoughSumming():
        done, naps = ctypes.c_int.in_dll(poller, "done"), []
        for _ in range(5):  # on a busy machine it may wake late
            done.value = 0
            threading.Timer(0.5, lambda: setattr(done, "value", 1)).start()
            before = engine.session.stats()["naps"]
            poller.poll_until_done()
            naps.append(engine.session.stats()["naps"] - before)
            if naps[-1] > 200:
                break
    assert max(naps) > 200, naps  # of half a millisecond; of 5: 100


def test_who_begins_to_wait_ends_the_sleep_of_the_thread_that_is_to_work(tmp_path: Path) -> None:
    with hooked(tmp_path) as poller, contextlib.ExitStack() as stack:
        assert _engine.hook.install(poller._name, SLEEP, str(engine.LIBRARY), SHORTER_SLEEP)
        stack.callback(_engine.hook.remove, SLEEP)
        sleeper = threading.Thread(target=lambda: poller.sleep_ms(600_000), daemon=True)
        sleeper.start()
        processor_seconds_of_a_wait(poller, 0.05)
        sleeper.join(20)
        assert not sleeper.is_alive()
        for _ in range(3):  # that one wait may end
            poller.sleep_ms(1)
        start = time.monotonic()
        poller.sleep_ms(20)
        assert time.monotonic() - start >= 0.02
        ctypes.c_int.in_dll(poller, "done").value = 0
        threading.Timer(
            0.05, lambda: setattr(ctypes.c_int.in_dll(poller, "done"), "value", 1)
        ).start()
        poller.poll_until_done()  # of its own waits it is not woken
        start = time.monotonic()
        poller.sleep_ms(20)
        assert time.monotonic() - start >= 0.02
