"""One rank's router: how much it begins at once, and that it stops at once."""

from __future__ import annotations

import numpy as np
from _engine_tests import protocol


def test_a_reduce_begins_with_half_a_message_however_many_ranks() -> None:
    """It has one aggregator to keep busy, and hears the others sooner."""
    shape = protocol.Shape(
        count=8 * 14 * 1024, dtype="float32", block_size=1024, slots=8, window=14
    )
    assert 2 * shape.window * shape.block_bytes > protocol.FULL
    router = protocol.Router(64)
    router.start(shape, np.ones(shape.count, np.float32))
    assert router.contributions == 1


def test_once_stopped_in_its_work_it_sends_no_more() -> None:
    """Two slots have a sum ready, and wait for the memory of the one before the last."""
    shape = protocol.Shape(count=400, dtype="float32", block_size=4, slots=2)
    ours, theirs = np.ones(400, np.float32), np.full(400, 2, np.float32)
    router, worker = protocol.Router(2), protocol.Worker(shape, 1, theirs, theirs, scan_ahead=1)
    router.start(shape, ours)
    [(_, first)] = worker.start()
    router.take(1, first.bytes())
    answers = [worker.on_message(result.bytes()) for result in router.results()]
    router.work()  # rank 0 contributes to the next round
    for answer in answers:
        router.take(1, answer.bytes())
    assert (router.contributions, router.sent) == (4, 2)
    router.stop_when_it_sends()
    router.release()
    assert router.work() and router.sent == 3
