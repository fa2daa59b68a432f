"""How long a process waits for others."""

from __future__ import annotations

import time

LONGEST_STEP_S = 2.0  # a longer one is a stop of this process (SIGSTOP, a suspended job)


class Patience:
    """Counts the time in which this process is awake: while it is stopped it cannot hear others."""

    def __init__(self, seconds: float) -> None:
        self._left = seconds
        self._looked = time.monotonic()

    def over(self) -> bool:
        """To be asked at least once a second."""
        now = time.monotonic()
        step, self._looked = now - self._looked, now
        self._left -= step if step <= LONGEST_STEP_S else 0.1
        return self._left < 0
