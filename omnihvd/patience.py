"""Time-outs that do not count the time in which the process is stopped."""

from __future__ import annotations

import time

LONGEST_STEP_S = 2.0  # a longer one is a stop of this process (SIGSTOP, a suspended job)


class Patience:
    """A time-out in awake time: while this process is stopped it cannot hear others."""

    def __init__(self, seconds: float) -> None:
        self._left = seconds
        self._looked = time.monotonic()

    def over(self) -> bool:
        """Whether the time is over; call it at least once a second."""
        now = time.monotonic()
        step, self._looked = now - self._looked, now
        self._left -= step if step <= LONGEST_STEP_S else 0.1
        return self._left < 0
