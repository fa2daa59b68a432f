"""OMNIHVD_STATS: a line of JSON for each step, with each of its sums, and how much of their time
was hidden behind computing.

Each line has

step, rank         counted from 1
seconds            of the step
sums               of each call: way, bytes, at_s (since the step's begin), seconds, bytes_sent,
                   density (blocks that are not zero here), union_density (on any rank)
sum_seconds        time in which a sum was under way
overlap            share of sum_seconds in which gradients were still being computed; null: unknown
density, union_density, sent_of_ring, passed_share    of the step, as in omnihvd.stats()
"""

from __future__ import annotations

import atexit
import json
import time
from pathlib import Path
from typing import Any

from omnihvd import engine
from omnihvd.launchers import process_rank
from omnihvd.statistics import SHARES, Statistics

Interval = tuple[float, float]
_log: StepLog | None = None


def begin(path: str) -> StepLog:
    """Opens this process's log. OSError when the file cannot be written."""
    global _log
    _log = StepLog(Path(path))
    return _log


def step_ended() -> None:
    """Ends a step of loops without a hook, such as Keras'. Does nothing without OMNIHVD_STATS."""
    if _log:
        _log.step_ended()


def for_rank(path: Path, rank: int) -> Path:
    """The file's name for a rank, as for the engine's traces: rank 0's is the path itself."""
    return path if rank == 0 else path.with_name(f"{path.stem}.rank-{rank}{path.suffix}")


class StepLog:
    def __init__(self, path: Path) -> None:
        self._path, self._step = path, 0
        self._open(process_rank() or 0)
        atexit.register(lambda: self._file.close())
        self._figures = Statistics()
        self._begun = time.monotonic()
        self._computed: float | None = None  # when the step's last gradient was ready
        engine.session.keep_calls()

    def _open(self, rank: int) -> None:
        self._rank, self._file = rank, for_rank(self._path, rank).open("w")

    def gradient_ready(self, *_: Any) -> None:
        self._computed = time.monotonic()

    def step_ended(self) -> None:
        now = time.monotonic()
        rank = process_rank() or 0
        if rank != self._rank and not self._file.closed:  # no launcher told it at the start
            self._file.close()
            self._open(rank)
        self._step += 1
        calls = engine.session.take_calls()
        spans = [(call["begun"], call["ended"]) for call in calls]
        total = covered(spans)
        overlap = None
        if self._computed is not None and total > 0:
            overlap = covered([(a, min(b, self._computed)) for a, b in spans]) / total
        figures = self._figures.read(reset=True)
        line = {
            "step": self._step,
            "rank": self._rank,
            "seconds": round(now - self._begun, 6),
            "sum_seconds": round(total, 6),
            "overlap": None if overlap is None else round(overlap, 4),
            **{name: figures[name] for name in SHARES},
            "sums": [self._sum(call) for call in calls],
        }
        if not self._file.closed:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()
        self._begun, self._computed = now, None

    def _sum(self, call: dict[str, Any]) -> dict[str, Any]:
        blocks = call["blocks"] or None
        return {
            "way": call["way"],
            "bytes": call["bytes"],
            "at_s": round(call["begun"] - self._begun, 6),
            "seconds": round(call["ended"] - call["begun"], 6),
            "bytes_sent": call["bytes_sent"],
            "density": blocks and call["nonzero_blocks"] / blocks,
            "union_density": blocks and call["result_blocks"] / blocks,
        }


def covered(spans: list[Interval]) -> float:
    """The seconds that the spans cover together; a span that ends before it begins counts 0."""
    total, reached = 0.0, float("-inf")
    for begin_s, end_s in sorted(spans):
        total += max(0.0, end_s - max(begin_s, reached))
        reached = max(reached, end_s)
    return total


def follow_torch(log: StepLog) -> None:
    """Steps are those of torch.optim's first optimizer."""
    from omnihvd.intercept.optimizer_steps import OptimizerSteps

    known: set[int] = set()

    def ended() -> None:
        log.step_ended()
        for parameter in steps.parameters():
            if parameter.requires_grad and id(parameter) not in known:
                known.add(id(parameter))
                if hasattr(parameter, "register_post_accumulate_grad_hook"):
                    parameter.register_post_accumulate_grad_hook(log.gradient_ready)

    steps = OptimizerSteps(lambda: None, ended)
