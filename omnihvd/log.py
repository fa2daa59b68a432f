"""Messages to people, in the engine's format and under the engine's OMNIHVD_LOG."""

from __future__ import annotations

import functools
import logging
import os
import socket
import sys

from omnihvd.launchers import process_rank

NOTICE = 25  # no warning, but useful to all: shown from `warning` on
logging.addLevelName(NOTICE, "NOTICE")
LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": NOTICE,
    "error": logging.ERROR,
    "off": logging.CRITICAL + 1,
}


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        rank = process_rank()
        where = socket.gethostname() + ("" if rank is None else f" rank {rank}")
        return f"[omnihvd {record.levelname.lower()} {where}] {super().format(record)}"


class _Handler(logging.StreamHandler):
    """Writes to stderr, unless the job has a handler for the console itself."""

    def emit(self, record: logging.LogRecord) -> None:
        for handler in logging.getLogger().handlers:
            to = getattr(handler, "stream", None)
            if to in (sys.stderr, sys.stdout) and record.levelno >= handler.level:
                return
        super().emit(record)


def _make() -> logging.Logger:
    logger = logging.getLogger("omnihvd")
    handler = _Handler()
    handler.setFormatter(_Formatter())
    logger.addHandler(handler)
    logger.setLevel(LEVELS.get(os.environ.get("OMNIHVD_LOG", "").lower(), NOTICE))
    return logger


logger = _make()


def warn_once_per_job(message: str) -> None:
    """Warns on rank 0 only, for problems that all ranks have alike."""
    if process_rank() in (None, 0):
        logger.warning(message)


@functools.cache
def warn_once(message: str) -> None:
    """The same, once for each text."""
    warn_once_per_job(message)


def say_once_per_job(message: str) -> None:
    """As warn_once_per_job(), for notices."""
    if process_rank() in (None, 0):
        logger.log(NOTICE, message)
