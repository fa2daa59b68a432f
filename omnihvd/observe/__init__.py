"""Seeing a job while it runs: traces, steps, figures for Prometheus, `omnihvd top`.

Without a setting nothing is recorded, and the only thread is the one that answers `omnihvd top`.
Failures here are logged and never fail a job.
"""

from __future__ import annotations

from typing import Any, Callable

from omnihvd.intercept.after_import import after_import, part
from omnihvd.intercept.at_exit import at_exit
from omnihvd.log import logger
from omnihvd.observe import steps, traces


def begin(settings: Any) -> None:
    """Starts what the settings of this process ask for."""
    if settings.trace:
        guarded(lambda: traces.try_path(settings.trace), "OMNIHVD_TRACE")
    if traces.wanted(settings):
        at_exit(guarded, traces.finish, "the trace")
    if settings.stats:
        guarded(lambda: _begin_steps(settings.stats), "OMNIHVD_STATS")
    if settings.metrics:
        guarded(lambda: part("omnihvd.observe.metrics").serve(settings.metrics), "OMNIHVD_METRICS")
    if settings.watchable:
        guarded(lambda: part("omnihvd.observe.watchable").serve(), "`omnihvd top`")


def guarded(work: Callable[[], None], what: str) -> None:
    try:
        work()
    except Exception as why:
        logger.warning("%s is left out: %s", what, why)


def _begin_steps(path: str) -> None:
    log = steps.begin(path)
    after_import("torch", lambda _: guarded(lambda: steps.follow_torch(log), "OMNIHVD_STATS"))
