"""When to look at gradients, what was seen, and what becomes of it at the end."""

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
WARM_UP = 1  # steps not looked at
FEW = 3  # samples that are taken in the beginning, whatever they cost


class Sampler:
    """This process's. The framework's part calls step_ended() at each step's end, and wants() to
    know whether to look at the gradients of the step that begins.

    Samples are taken at steps that are multiples of a power of two, which grows until looking costs
    less than the budget: so ranks whose cost differs still look at the same steps often enough.
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
        self.timing = Sample(1)  # of the step under way; where it is looked at, that sample
        self._spent_before = 0.0

    def wants(self) -> Sample | None:
        """The sample to fill in the step that is under way; None: nothing is wanted."""
        return self._looking

    def seconds(self) -> float:
        """Since the step began, less what looking has cost."""
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
            return 2  # of the others it is learnt how long a step takes
        cost = statistics.median(self._costs_s)
        step = statistics.median(self._quiet_s)
        stride = 2
        while cost > BUDGET * stride * step:
            stride *= 2
        return stride

    def seen(self) -> Seen:
        """Raises Unusable with the reason why there is nothing."""
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
    """Makes it, and removes what a job before has left there. OSError when it cannot be used."""
    folder.mkdir(parents=True, exist_ok=True)
    samples.remove_all(folder)
    probe = folder / f".probe-{os.getpid()}"
    probe.write_bytes(b"")
    probe.unlink()
