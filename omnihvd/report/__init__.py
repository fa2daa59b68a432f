"""A report on a model's gradients: would OmniReduce pay, and what else would?

    python -m omnihvd --report out/ train.py

or, in a script, for a part of the training:

    omnihvd.report.start("out/")
    ...
    omnihvd.report.stop()

The report changes no sum. In a few steps it samples gradients as they become ready, before anybody
sums them. At the end every rank writes rank-N.npz. Rank 0 waits a moment for the others' files and
makes report.html and report.json; the others wait for it. `omnihvd report out/` makes them again,
from the files of several hosts or for other networks. docs/report.md says more.

A failure in here ends the report, with one message, and never the training.
"""

from __future__ import annotations

import atexit
import sys
import time
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Callable

from omnihvd.intercept.after_import import after_import
from omnihvd.intercept.at_exit import at_exit
from omnihvd.log import logger, warn_once_per_job
from omnihvd.patience import Patience

PATIENCE_S = 10.0  # for other ranks' files
_running: _Report | None = None


def start(
    folder: str | Path = "omnihvd-report",
    *,
    rates: list[str] | None = None,
    ranks: list[int] | None = None,
    every: int | None = None,
) -> None:
    """Begins to sample. folder: for the report, made if need be. rates (of links, such as
    "10gbit"), ranks (one a host): the networks and jobs to predict for. every: sample every
    `every`-th step at any cost; None: as often as costs less than 2% of the time. RuntimeError
    when a report is under way already. Other failures are logged, and training goes on without a
    report."""
    global _running
    if _running:
        raise RuntimeError("a report is under way; call omnihvd.report.stop() before the next one")
    from omnihvd.report.sampler import Sampler, check_folder

    path = Path(folder)
    try:
        check_folder(path)
    except OSError as why:
        warn_once_per_job(f"no report will be made: {path} cannot be written to ({why})")
        return
    _running = _Report(path, Sampler(every), {"rates": rates, "ranks": ranks})


def stop() -> Path | None:
    """Ends sampling and writes the samples. Returns the page on rank 0; None on other ranks, and
    where there is no report: the log says why. Also called when the process ends."""
    global _running
    report, _running = _running, None
    return report.finish() if report else None


class _Report:
    def __init__(self, folder: Path, sampler: Any, network: dict[str, Any]) -> None:
        self._folder, self._sampler, self._network = folder, sampler, network
        self._sources: list[Any] = []
        self._failed = False
        self._page: Path | None = None
        for framework in ("torch", "tensorflow"):
            after_import(framework, self._add)
        self._stop = at_exit(stop)

    def _add(self, framework: ModuleType) -> None:
        def add() -> None:
            part: Any = import_module(f"omnihvd.report.{framework.__name__}_gradients")
            self._sources.append(part.Source(framework, self._sampler, self.guard))

        self.guard(add)

    def guard(self, work: Callable[[], None]) -> None:
        if self._failed:
            return
        try:
            work()
        except Exception as why:
            self._failed = True
            logger.warning("the report ends here, since looking at gradients failed: %r", why)

    def finish(self) -> Path | None:
        atexit.unregister(self._stop)
        for source in self._sources:
            self.guard(source.close)
        self.guard(self._write)
        return self._page

    def _write(self) -> None:
        from omnihvd.report import command, samples

        try:
            seen = self._sampler.seen()
            samples.save(seen, self._folder)
        except (samples.Unusable, OSError) as why:
            warn_once_per_job(f"no report: {why}")
            return
        folder = self._folder
        if seen.job.rank != 0:
            # Launchers end all ranks when one fails, so let rank 0 end first.
            if _comes(lambda: any(folder.glob("rank-0000-*"))):
                _comes((folder / samples.PAGE).exists)
            return
        _comes(lambda: len(list(folder.glob(samples.PATTERN))) >= seen.job.ranks)
        try:
            everyone = samples.load_all([folder])
            self._page = command.make(everyone, folder, sys.stderr, **self._network)
        except (samples.Unusable, OSError) as why:
            logger.warning("no report: %s", why)


def _comes(that: Callable[[], bool]) -> bool:
    """Whether it becomes true within PATIENCE_S."""
    patience = Patience(PATIENCE_S)
    while not that():
        if patience.over():
            return False
        time.sleep(0.1)
    return True
