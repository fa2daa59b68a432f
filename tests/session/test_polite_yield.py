"""Polling threads of other libraries sleep instead, on a library compiled here."""

from __future__ import annotations

import ctypes
import threading
import time
from pathlib import Path

from test_got_hook import build

from omnihvd import _engine, engine
from omnihvd.waiting import FUNCTION, REPLACEMENT

POLLER = """
#include <sched.h>
volatile int done;
void poll_until_done(void) { while (!done) sched_yield(); }
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


def test_a_polling_thread_sleeps(tmp_path: Path) -> None:
    path = build(tmp_path, "poller", POLLER)
    poller = ctypes.CDLL(path)
    before = engine.session.stats()
    assert processor_seconds_of_a_wait(poller, 0.1) > 0
    assert engine.session.stats()["naps"] == before["naps"]
    assert _engine.hook.install(path, FUNCTION, str(engine.LIBRARY), REPLACEMENT) == [path]
    try:
        used = processor_seconds_of_a_wait(poller, 0.5)
    finally:
        _engine.hook.remove(FUNCTION)
    after = engine.session.stats()
    assert after["naps"] > before["naps"]
    slept = after["nap_seconds"] - before["nap_seconds"]
    assert slept > 0.3  # of the half second
    assert used < 0.2
