"""Do all ranks ask for omnihvd's sums on GPUs? They learn it where all of them pass anyway.

A rank that does not ask takes no part, so the others give up after PATIENCE_S, and NCCL makes all
sums. All ranks that ask come to the same answer, however late some are.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

from omnihvd.version import __version__

PATIENCE_S = 30.0
YES = f"yes: {__version__}"


def ask_store(store: Any, rank: int, size: int, question: str, answer: str = YES) -> str:
    """Asks over torch.distributed's store. answer: YES, or why this rank cannot. Returns an empty
    string if all ranks answer YES, else why not.

    Rank 0 reads the answers. A verdict is stored once, by whoever comes first: rank 0, or a rank
    that waits for rank 0 no longer."""
    answers, verdict = [f"{question}/{r}" for r in range(size)], f"{question}/verdict"
    store.set(answers[rank], answer)
    found = "rank 0 does not ask for it"
    # A wait ends with RuntimeError once its time is over.
    with suppress(RuntimeError):
        if rank:
            store.wait([verdict], timedelta(seconds=2 * PATIENCE_S))
        else:
            store.wait(answers, timedelta(seconds=PATIENCE_S))
    if not rank:
        found = _first_problem(store, answers)
    decided = store.compare_set(verdict, "", found or YES).decode()
    return "" if decided == YES else str(decided)


def _first_problem(store: Any, answers: list[str]) -> str:
    # A rank may answer after the wait, and before this reads.
    for rank, key in enumerate(answers):
        if not store.check([key]):
            return f"rank {rank} does not ask for it"
        answer = store.get(key).decode()
        if answer != YES:
            return f"rank {rank}: {answer}"
    return ""


def ask_by_votes(vote: Callable[[str, int], int], question: str, answer: str = YES) -> str:
    """Asks over Horovod's controller. vote(name, number): Horovod's least number of all ranks.
    Returns as ask_store() does.

    Two votes: the first ends only if all ranks ask. A rank that no longer waits for it votes no in
    the second, and goes on; so the second ends wherever the first has."""
    asked = _Vote(vote, f"{question}.asked", int(answer == YES))
    in_time = asked.wait(PATIENCE_S)
    agreed = _Vote(vote, f"{question}.agreed", int(in_time and asked.least == 1))
    if not in_time:
        return f"not all ranks asked for it within {PATIENCE_S:.0f} s"
    agreed.wait(None)
    if agreed.least == 1:
        return ""
    return answer if answer != YES else "another rank cannot, or was late: see its message"


class _Vote:
    def __init__(self, vote: Callable[[str, int], int], name: str, number: int) -> None:
        self.least = 0  # also where Horovod fails
        self._thread = threading.Thread(target=self._run, args=(vote, name, number), daemon=True)
        self._thread.start()

    def _run(self, vote: Callable[[str, int], int], name: str, number: int) -> None:
        self.least = vote(name, number)

    def wait(self, seconds: float | None) -> bool:
        self._thread.join(seconds)
        return not self._thread.is_alive()
