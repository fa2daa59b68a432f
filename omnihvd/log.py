"""Messages to people, in the engine's format and under the engine's OMNIHVD_LOG."""

from __future__ import annotations

import logging
import os
import socket
import sys

from omnihvd.launchers import process_rank

NOTICE = 25  # not a warning, but of use to all: shown from `warning` on
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
    """To stderr, unless a handler of the job's own writes to the console, too."""

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
    """All ranks are alike: rank 0 speaks for them."""
    if process_rank() in (None, 0):
        logger.warning(message)


def say_once_per_job(message: str) -> None:
    """The same for what is no cause for concern."""
    if process_rank() in (None, 0):
        logger.log(NOTICE, message)
