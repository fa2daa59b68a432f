"""Compression that follows the network: Abdelmoniem and Canini, "DC2: delay-aware compression
control for distributed machine learning" (INFOCOM 2021): published, not available to us; the law is
ours, after its abstract.

After every step, with v the running mean of the ratio over the time of the step's sums:

    fit = v * budget                            the ratio that would take the budget
    ratio = max(fit, CUT * ratio, min_ratio)    if fit is below the ratio by more than BAND of it
    ratio = min(fit, ratio + RISE, 1)           if fit is above it by more than BAND of it, or 1

and unchanged in between. If two steps in a row take more than OFF times the budget, or both less
than 1/OFF of it, the network is another: v is their mean alone, and the ratio becomes the fit at
once, within min_ratio and 1. One slow step alone does not do that.

A rank alone has an idle network: fit = 1. (The law assumes that the bytes sent are in proportion to
the ratio; where they are not, v follows.) Sums that are left to the original library have no time
that is known: they are taken to have as many bytes a second as the others. A step without any time
leaves the ratio as it is: a sum that nobody counted is no evidence of an idle network.

Sums of codes (part_sums.py) go by alltoall and allgather, which the engine does not see. Their time
is that for which this rank waits for them (counters.add_codes).
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from omnihvd import engine
from omnihvd.compression import counters
from omnihvd.compression.rules import Rule
from omnihvd.log import warn_once_per_job

WEIGHT = 0.2  # of the last step in the running mean
BAND, CUT, RISE = 0.2, 0.7, 0.02
OFF = 2.0
ALONE = "one rank"  # the fallback reason of sums that need no network
NO_NETWORK = ("control", ALONE, "empty")  # and of all that take it no time


@dataclass(frozen=True)
class DelayControl:
    budget_ms: float
    min_ratio: float


class Controller:
    """The law: no clock, no network."""

    def __init__(self, control: DelayControl, ratio: float) -> None:
        self.ratio = ratio
        self._control = control
        self._least = min(ratio, control.min_ratio)  # a rule's own ratio may be less
        self._speed: float | None = None  # ratio over seconds
        self._last, self._side = 0.0, 0  # of the last step: its speed; 1: too slow, -1: too fast

    def step(self, seconds: float) -> float:
        """seconds: of the last step's sums, at the present ratio. Returns the next ratio."""
        fit, changed, budget = 1.0, False, self._control.budget_ms / 1e3
        if seconds > 0:
            speed = self.ratio / seconds
            side = int(seconds > OFF * budget) - int(seconds < budget / OFF)
            changed = side != 0 and side == self._side
            before = speed if self._speed is None else self._speed
            mean = (1 - WEIGHT) * before + WEIGHT * speed
            self._speed = (self._last + speed) / 2 if changed else mean
            self._last, self._side = speed, side
            fit = self._speed * budget
        if changed:
            self.ratio = max(min(fit, 1.0), self._least)
        elif fit < (1 - BAND) * self.ratio:
            self.ratio = max(fit, CUT * self.ratio, self._least)
        elif fit > (1 + BAND) * self.ratio or fit >= 1:
            self.ratio = max(self.ratio, min(fit, self.ratio + RISE, 1.0))
        return self.ratio


class Sums(NamedTuple):
    """The figures of this process, since it began or in a step."""

    sent: float  # bytes to other processes
    seconds: float
    timed: float  # bytes of the tensors that took these
    untimed: float  # bytes of the tensors that were summed in a time that is not known
    alone: float  # bytes of the tensors that no other rank has

    def since(self, before: Sums) -> Sums:
        return Sums(*(now - then for now, then in zip(self, before)))

    def all_seconds(self) -> float | None:
        """None: not known. 0: the network is idle."""
        if self.timed > 0:
            return self.seconds * (1 + self.untimed / self.timed)
        return 0.0 if self.alone and not self.untimed else None


class Monitor:
    """Measures the steps of this process by the engine's own figures. Any thread may ask."""

    def __init__(self, control: DelayControl, ratio: float) -> None:
        self._controller = Controller(control, ratio)
        self._lock = threading.Lock()
        self._step: int | None = None
        self._before = Sums(0, 0, 0, 0, 0)
        self._warned = False

    def ratio(self, step: int) -> float:
        """For a parameter's `step`-th compression; the first to ask for a step ends the last."""
        with self._lock:
            if self._step is None or step > self._step:
                now = _sums()
                if self._step is not None:
                    self._end_step(now.since(self._before))
                self._before, self._step = now, step
            return self._controller.ratio

    def _end_step(self, sums: Sums) -> None:
        counters.add(controlled_steps=1, ratios=self._controller.ratio)
        counters.add(delay_bytes=sums.sent, delay_seconds=sums.seconds)
        seconds = sums.all_seconds()
        if seconds is not None:
            self._controller.step(seconds)
        elif not self._warned:
            self._warned = True
            warn_once_per_job(
                f"delay control keeps the ratio {self._controller.ratio:g}: omnihvd knows no time "
                "of a step's sums. Either all were left to the original library (omnihvd.stats()"
                "['passed'] says why), or omnihvd is not in use (see: omnihvd check)"
            )


def start_of(rule: Rule) -> float:
    """The ratio to begin with: the rule's own; of thresholds that at which they are as given."""
    return getattr(rule, "ratio", 0.5)


def at(rule: Any, ratio: Any) -> Any:
    """The rule at a ratio. A threshold, which has none, is multiplied by 1/ratio - 1."""
    if not hasattr(rule, "threshold"):
        return rule
    return dataclasses.replace(rule, threshold=rule.threshold * (1 / ratio - 1))


@contextmanager
def exposed() -> Iterator[None]:
    """Around what waits for sums."""
    start = time.perf_counter()
    yield
    counters.add(exposed_seconds=time.perf_counter() - start)


def _sums() -> Sums:
    figures = engine.session.stats()
    ways, passed = figures["ways"].values(), figures["passed"]
    codes, codes_untimed, code_seconds = counters.codes()
    left = sum(calls["bytes"] for reason, calls in passed.items() if reason not in NO_NETWORK)
    return Sums(
        figures["bytes_sent"] + figures["library_bytes"] + codes,
        sum(way["seconds"] for way in ways) + code_seconds,
        sum(way["bytes"] for way in ways) + codes - codes_untimed,
        left + codes_untimed,
        passed.get(ALONE, {"bytes": 0})["bytes"],
    )
