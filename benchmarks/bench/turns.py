"""Backends take turns at each point, so that a machine that drifts favours none of them.

Before that, each setting of a peer is tried with few samples, and those close to the fastest stay.
The answer is that of the setting with the smallest median. It may differ from point to point.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.bench.backends import TIMEOUT_S, Hosts, ThisMachine
from benchmarks.bench.session import BenchError, Session
from benchmarks.bench.settings import settings_of
from benchmarks.bench.worker import Visit
from omnihvd.bench.patterns import Point

LARGE, SMALL = 10_000_000, 1_000_000  # bytes
KEPT_SUMS = 100  # of all sums at a point, in order
KEPT_FIRST = 20  # of a new job's sums
TRIED_RUNS, TRIED_S = 3, 1.0  # of a setting: samples, and seconds of them at most
TRIED_SMALL = 15  # samples, where a sum is short and varies by a factor
LISTED, CLOSE = 2, 1.3  # settings to measure: at most so many, within this factor of the fastest
MANY_RANKS = 8  # sessions of so many ranks take GBs each: keep only one

Answer = dict[str, Any]
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """The amount of samples for each point and backend."""

    min_seconds: float = 0
    min_runs: int = 5
    large_runs: int | None = None  # instead, for tensors over LARGE
    small_runs: int | None = None  # instead, for tensors up to SMALL
    max_seconds: float | None = None  # of samples, however few these are
    rounds: int = 3
    new_jobs: bool = False  # for tensors up to SMALL, each round has a new job
    compute_s: float = 0
    timeout: float = TIMEOUT_S

    def turn(self, point: Point) -> Visit:
        own = self.large_runs if point.bytes > LARGE else None
        own = self.small_runs if point.bytes <= SMALL else own
        runs = math.ceil((own or self.min_runs) / self.rounds)
        most = None if self.max_seconds is None else self.max_seconds / self.rounds
        seconds = self.min_seconds / self.rounds
        return Visit(point, False, seconds, runs, most, self.compute_s)


@dataclass
class Contender:
    """A backend at a point, in one setting."""

    session: Session
    answer: Answer  # of all its turns together
    tried_s: float  # the median of its trial


Field = dict[Point, list[Contender]]


def measure(
    network: Hosts | ThisMachine,
    points: Mapping[str, Sequence[Point]],
    plan: Plan,
    tell: Tell = print,
) -> list[Answer]:
    """Measures all points. points: by backend; the answers have the same order. tell: is called
    with failures."""
    with contextlib.ExitStack() as stack:
        fields = {
            backend: fastest(network, backend, wanted, plan, stack, tell)
            for backend, wanted in points.items()
        }
        if plan.new_jobs:
            for backend in _order_of_turns(fields, plan):
                _take_turn_in_new_jobs(network, backend, fields[backend], plan)
        for work in dict.fromkeys(_work(point) for field in fields.values() for point in field):
            if not (plan.new_jobs and work.bytes <= SMALL):
                for backend in _order_of_turns(fields, plan):
                    _take_turn(fields[backend], work, plan)
    return [
        {"backend": backend, **best_of(contenders)}
        for backend, field in fields.items()
        for contenders in field.values()
    ]


def _order_of_turns(backends: Iterable[str], plan: Plan) -> Iterator[str]:
    """In each round another backend begins."""
    names = list(backends)
    for turn in range(plan.rounds):
        start = turn % len(names)
        yield from names[start:] + names[:start]


def _work(point: Point) -> Point:
    """The key of points that are measured together: all densities."""
    return replace(point, density=1.0)


def _take_turn(field: Field, work: Point, plan: Plan) -> None:
    for point, contenders in field.items():
        for contender in contenders if _work(point) == work else ():
            answer = contender.session.visit(plan.turn(point))
            contender.answer = together(contender.answer, answer)


def _take_turn_in_new_jobs(
    network: Hosts | ThisMachine, backend: str, field: Field, plan: Plan
) -> None:
    """A turn at each small point, by a new job in each setting: two jobs alike may differ by a
    factor there."""
    small = [c for point, contenders in field.items() for c in contenders if point.bytes <= SMALL]
    for setting in settings_of(backend, network.count == 1):
        mine = [contender for contender in small if contender.answer["setting"] == setting.name]
        if not mine:
            continue
        with network.start(backend, setting, timeout=plan.timeout) as session:
            for contender in mine:
                point = Point(**contender.answer["point"])
                first = session.visit(Visit(point, True, compute_s=plan.compute_s))
                starts = [*contender.answer.get("starts", []), first["sums"][:KEPT_FIRST]]
                answer = session.visit(plan.turn(point))
                contender.answer = {**together(contender.answer, answer), "starts": starts}


def fastest(
    network: Hosts | ThisMachine,
    backend: str,
    points: Sequence[Point],
    plan: Plan,
    stack: contextlib.ExitStack,
    tell: Tell,
) -> Field:
    """The backend's fastest settings at each point. Their sessions live as long as the stack; the
    others end."""
    field: Field = {point: [] for point in points}
    tried: dict[Point, dict[str, float]] = {point: {} for point in points}
    sessions: dict[Session, contextlib.ExitStack] = {}
    settings = settings_of(backend, network.count == 1)
    for setting in settings:
        own = stack.enter_context(contextlib.ExitStack())
        try:
            session = own.enter_context(network.start(backend, setting, timeout=plan.timeout))
            found = [_first(session, point, plan, len(settings) > 1) for point in points]
        except (BenchError, subprocess.SubprocessError) as why:
            own.close()
            tell(f"{backend} {setting.name}: {why}")
            continue
        sessions[session] = own
        for point, contender in zip(points, found):
            contender.answer["setting"] = setting.name
            many = network.count * network.per_host >= MANY_RANKS
            field[point] = short_list([*field[point], contender], 1 if many else LISTED)
        listed = {contender.session for contenders in field.values() for contender in contenders}
        for session in set(sessions) - listed:
            sessions.pop(session).close()
        for point, contender in zip(points, found):
            tried[point][setting.name] = contender.tried_s
    for contender in (c for contenders in field.values() for c in contenders):
        contender.answer["tried"] = tried[Point(**contender.answer["point"])]
    if points and not sessions:
        raise BenchError(f"{backend} measured nothing")
    return field


def short_list(contenders: Sequence[Contender], most: int) -> list[Contender]:
    """The fastest, and those that few samples do not tell apart from it."""
    ranked = sorted(contenders, key=lambda contender: contender.tried_s)
    return [c for c in ranked[:most] if c.tried_s <= CLOSE * ranked[0].tried_s]


def _first(session: Session, point: Point, plan: Plan, compared: bool) -> Contender:
    few = TRIED_SMALL if point.bytes <= SMALL else TRIED_RUNS
    runs, seconds = (few, TRIED_S) if compared else (0, None)
    answer = session.visit(Visit(point, True, 0, runs, seconds, plan.compute_s))
    median = statistics.median(answer["samples"] or answer["sums"])
    return Contender(session, {**answer, "samples": []}, median)


def together(before: Answer, now: Answer) -> Answer:
    """Joins two answers for one point: all samples, the mean processor time, the first sums."""
    samples = before["samples"] + now["samples"]
    cpu = sum(answer["cpu_s"] * len(answer["samples"]) for answer in (before, now)) / len(samples)
    sums = (before["sums"] + now["sums"])[:KEPT_SUMS]
    counters = now["counters"]
    return {**before, "samples": samples, "cpu_s": cpu, "sums": sums, "counters": counters}


def best_of(contenders: Sequence[Contender]) -> Answer:
    """The best answer, with the medians of all measured settings."""
    medians = [statistics.median(contender.answer["samples"]) for contender in contenders]
    best = contenders[medians.index(min(medians))].answer
    named = {c.answer["setting"]: median for c, median in zip(contenders, medians)}
    return {**best, "measured": named}
