"""Decides when to sample gradients, keeps the samples, and hands them over at the end."""

from __future__ import annotations

import os
import statistics
import time
from collections import deque
from pathlib import Path
from typing import Callable

from omnihvd.report import samples
from omnihvd.report.samples import Job, Sample, Seen

BUDGET = 0.015  # of the time, for looking
MOST_TIMINGS = 2048  # steps; then the older half is dropped
MOST_BYTES = 128 << 20  # of samples in memory; then every second one is dropped
WARM_UP = 1  # unsampled steps
FEW = 3  # samples at the beginning, at any cost


class Sampler:
    """This process's sampler. The framework's module calls step_ended() at each step's end, and
    wants() to learn whether to sample the gradients of the step that begins.

    Samples are taken at multiples of a power of two, and the power grows until sampling costs less
    than the budget. Ranks with different costs thus still sample the same steps often enough.
    """

    def __init__(self, every: int | None = None, clock: Callable[[], float] = time.perf_counter):
        self.job = Job()
        self.samples: list[Sample] = []
        self.spent_s = 0.0  # by looking
        self._every, self._clock = every, clock
        self._pid = os.getpid()
        self._begun: float | None = None
        self._step = 0  # ended
        self._step_begun = 0.0
        self._costs_s: deque[float] = deque(maxlen=MOST_TIMINGS)  # of looking, by sample
        self._quiet_s: deque[float] = deque(maxlen=MOST_TIMINGS)  # steps without looking
        self._bytes = 0  # of samples
        self._stride = 2  # steps between samples, as far as was known at the last one
        self._looking: Sample | None = None
        self.timing = Sample(1)  # of the current step; if that is sampled, its sample
        self._spent_before = 0.0

    def wants(self) -> Sample | None:
        """The sample to fill in the current step; None: do not sample."""
        return self._looking

    def seconds(self) -> float:
        """Seconds since the step began, less the cost of sampling."""
        return self._clock() - self._step_begun - (self.spent_s - self._spent_before)

    def step_ended(self) -> None:
        now = self._clock()
        if os.getpid() != self._pid:  # a fork
            self._looking = None
            return
        if self._looking is None and self.timing.wait_s is not None:
            self._keep_timing(self.timing)
        if self._begun is None:
            self._begun = now
        elif self._looking is None:
            self._quiet_s.append(now - self._step_begun)
        self._step += 1
        if self._looking and self._looking.gradients:
            self._costs_s.append(self.spent_s - self._spent_before)
            self._keep(self._looking)
        self._step_begun, self._spent_before = now, self.spent_s
        self.timing = Sample(self._step + 1)
        self._looking = self.timing if self._is_due(self._step + 1) else None

    def _keep_timing(self, of: Sample) -> None:
        rows = self.job.timings
        rows.append([of.step, of.backward_s, of.wait_s or 0.0, of.rest_s])
        if len(rows) > MOST_TIMINGS:
            del rows[: MOST_TIMINGS // 2]

    def _keep(self, sample: Sample) -> None:
        if not self.samples:  # at the end Horovod is gone
            samples.job_of_process(self.job)
        self.samples.append(sample)
        self._bytes += sample.bytes()
        while len(self.samples) > FEW and self._bytes > MOST_BYTES:
            del self.samples[::2]
            self._bytes = sum(s.bytes() for s in self.samples)
        self._stride = self._next_stride()

    def _is_due(self, step: int) -> bool:
        return step > WARM_UP and step % (self._every or self._stride) == 0

    def _next_stride(self) -> int:
        if len(self.samples) < FEW or not self._quiet_s:
            return 2  # unsampled steps show how long a step takes
        cost = statistics.median(self._costs_s)
        step = statistics.median(self._quiet_s)
        stride = 2
        while cost > BUDGET * stride * step:
            stride *= 2
        return stride

    def seen(self) -> Seen:
        """All samples. Raises Unusable with the reason if there are none."""
        if self._step == 0:
            raise samples.Unusable(
                "the script made no optimizer step in this process that could be seen: no "
                "torch.optim.Optimizer stepped and no tf.GradientTape was asked for gradients "
                "(processes that the script starts are not looked into)"
            )
        if not self.samples:
            if self._step <= WARM_UP + (self._every or 2):
                raise samples.Unusable(f"the script made {self._step} steps: too few to look at")
            raise samples.Unusable(
                f"in {self._step} steps no parameter had a gradient (all were None)"
            )
        self.job.steps = self._step
        quiet = self._quiet_s or [s.backward_s + (s.wait_s or 0) + s.rest_s for s in self.samples]
        self.job.step_s = statistics.median(quiet)
        all_s = self._clock() - (self._begun or 0.0)
        self.job.cost_share = self.spent_s / all_s if all_s > 0 else 0.0
        return Seen(self.job, self.samples)


def check_folder(folder: Path) -> None:
    """Makes the folder, and removes files of an earlier job. OSError when it cannot be used."""
    folder.mkdir(parents=True, exist_ok=True)
    samples.remove_all(folder)
    probe = folder / f".probe-{os.getpid()}"
    probe.write_bytes(b"")
    probe.unlink()
