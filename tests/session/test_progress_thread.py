"""An exception in a progress thread: the process lives, and callers are told."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CODE = """
import sys, threading
sys.path.insert(0, sys.argv[1])
from groups import Meeting, blocks_of, settings, sum_of
import _engine_tests, numpy as np
from omnihvd.engine import EngineError

engines = [_engine_tests.session.engine(settings(timeout_s=30, streams=1), "memory") for _ in "ab"]
said, failed = [None, None], threading.Event()

def in_both(work, meeting):
    def run(rank):
        work(rank, engines[rank].join(rank, 2, meeting.allgather(rank)))
    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

def waits_in_vain(rank, group):
    x = blocks_of(rank, 10_000, 0.5)
    if rank == 1:
        failed.wait(30)
    else:
        threading.Timer(0.3, _engine_tests.session.throw_in_memory_transports, [TIMES]).start()
    for _ in range(2):  # a failed group stays failed
        try:
            group.allreduce(x, x)
        except EngineError as why:
            said[rank] = str(why)
        failed.set()

def goes_well(rank, group):
    x = blocks_of(rank, 10_000, 0.5)
    group.allreduce(x, x)
    np.testing.assert_array_equal(x, sum_of(2, 10_000, 0.5))
    print("goes on\\n", end="")

in_both(waits_in_vain, Meeting(2))
_engine_tests.session.throw_in_memory_transports(0)
print(said)
in_both(goes_well, Meeting(2))
"""


def run(times: int) -> subprocess.CompletedProcess[str]:
    code = CODE.replace("TIMES", str(times))
    return subprocess.run(
        [sys.executable, "-c", code, str(Path(__file__).parent)],
        capture_output=True,
        text=True,
        timeout=100,
    )


def test_an_exception_in_a_progress_thread_fails_its_groups() -> None:
    done = run(1)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert said[0].count("has failed: as the test wanted") == 2, said
    assert said[1:] == ["goes on"] * 2


def test_exceptions_that_last_end_the_groups_too() -> None:
    done = run(1 << 30)
    assert done.returncode == 0, done.stderr
    assert "the progress thread of process " in done.stdout.splitlines()[0]
    assert done.stderr.count("the progress thread of process ") < 10, "nor do they fill the log"
