"""On each rank: the ranks change many times, in processes that stay; the last is killed each time,
and a new one takes its place. argv: ..., how often."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
from double import FOLDER, RANK, RANKS, allreduce, begin, end, hook, part, total

CHANGES = int(sys.argv[5])
SETTLED = CHANGES // 5
COUNT = 300_000


def check_sum() -> None:
    x = part(RANK, COUNT)
    allreduce(x)
    assert np.array_equal(x, total(RANKS, COUNT))


def held() -> tuple[int, int, int]:
    """File descriptors, threads, resident bytes of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    folders = (Path("/proc/self/fd"), Path("/proc/self/task"))
    files, threads = (len(list(folder.iterdir())) for folder in folders)
    return files, threads, pages * os.sysconf("SC_PAGE_SIZE")


def stay() -> None:
    settled = held()
    for number in range(CHANGES):
        begin(number)
        check_sum()
        (Path(FOLDER) / f"{number}.{RANK}").touch()
        start = time.monotonic()
        try:
            check_sum()
        except RuntimeError as why:
            assert f"rank {RANKS - 1} (" in str(why), why
        else:
            raise SystemExit("summed as if nothing had happened")
        assert time.monotonic() - start < 5
        end()
        if number == SETTLED:
            settled = held()
    now = held()
    assert now[0] <= settled[0] + 3 and now[1] <= settled[1], (settled, now)
    assert now[2] < settled[2] + (16 << 20), (settled, now)
    print("all well")


def replace() -> None:
    for number in range(CHANGES):
        child = os.fork()
        if child == 0:
            begin(number)
            check_sum()
            # Its last message may still be on its way to the others.
            while len(list(Path(FOLDER).glob(f"{number}.*"))) < RANKS - 1:
                time.sleep(1e-3)
            os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(child, 0)
    print("all well")


assert hook() is None
stay() if RANK < RANKS - 1 else replace()
