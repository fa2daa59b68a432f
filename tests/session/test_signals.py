"""Signals that come while a sum waits: Python runs their handlers, and what these raise ends it."""

from __future__ import annotations

import signal
import time
from typing import Any

import numpy as np
import pytest
from groups import Processes, processes, session
from test_statistics import new_process

from omnihvd.engine import EngineError


def _interrupted(rank: int, size: int, group: Any, pipe: Any) -> None:
    """Rank 0 is interrupted while it waits for rank 1."""
    x = np.full(100_000, rank + 1, np.float32)
    if rank == 1:
        pipe.recv()
    else:
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
    begun = time.monotonic()
    try:
        group.allreduce(x, x)
        pipe.send(("summed", x[0]))
    except (KeyboardInterrupt, EngineError) as why:
        pipe.send(("ended", (type(why).__name__, str(why), time.monotonic() - begun)))


def _disturbed(rank: int, size: int, group: Any, pipe: Any) -> None:
    """A handler of rank 0's runs while it waits, and raises nothing."""
    x = np.full(100_000, rank + 1, np.float32)
    if rank == 1:
        pipe.recv()
    else:
        signal.signal(signal.SIGALRM, lambda *_: pipe.send(("handler", None)))
        signal.setitimer(signal.ITIMER_REAL, 0.3)
    group.allreduce(x, x)
    pipe.send(("summed", float(x.min())))


def let(ranks: Processes, rank: int) -> None:
    ranks.pipes[rank].send(None)


@pytest.mark.parametrize("transport", ["ucx", "shared"])
def test_an_interrupt_ends_a_sum_that_waits_on_all_ranks(transport: str) -> None:
    with processes(2, _interrupted, transport, timeout_s=40.0) as ranks:
        ranks.gather()
        kind, _, seconds = ranks.expect(0, "ended")
        assert kind == "KeyboardInterrupt" and seconds < 15
        let(ranks, 1)
        kind, why, _ = ranks.expect(1, "ended")
        assert kind == "EngineError" and "interrupted in a sum (KeyboardInterrupt)" in why
        assert transport == "shared" or "rank 0: interrupted" in why


@pytest.mark.parametrize("transport", ["ucx", "shared"])
def test_a_handler_that_raises_nothing_ends_no_sum(transport: str) -> None:
    with processes(2, _disturbed, transport, timeout_s=40.0) as ranks:
        ranks.gather()
        ranks.expect(0, "handler", 15)
        let(ranks, 1)
        assert [ranks.expect(rank, "summed") for rank in range(2)] == [3, 3]


WAITS_FOR_A_SIGNAL = """
import os, signal
from omnihvd.engine import session
engine = session.Engine(session.Settings())
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
for _ in range(20):
    os.kill(os.getpid(), signal.SIGUSR1)
    assert signal.sigtimedwait([signal.SIGUSR1], 5), "another thread has it"
print("all well")
"""


def test_progress_threads_take_no_signal_that_the_program_waits_for() -> None:
    done = new_process(WAITS_FOR_A_SIGNAL, OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1")
    assert "all well" in done.stdout, done


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_what_ends_the_program_at_bootstrap_is_raised_as_it_is(kind: type[BaseException]) -> None:
    """It comes from the exchange, a function of Python. Later calls fail at once."""

    def allgather(mine: bytes) -> list[bytes]:
        raise kind("now")

    ranks = session.Communicator(0, 2)
    with pytest.raises(kind, match="now"):
        ranks.meet(allgather)
    with pytest.raises(EngineError, match="now"):
        ranks.meet(lambda mine: [mine, mine])
