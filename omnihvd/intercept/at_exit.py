"""Runs functions when this process ends, but not when a forked child ends. The child has copies of
the objects but none of their threads, and its parent still uses everything else."""

from __future__ import annotations

import atexit
import os
import sys
from typing import Any, Callable


def at_exit(function: Callable[..., Any], *arguments: Any) -> Callable[[], None]:
    """Like atexit.register(), but also in multiprocessing's children, which end without atexit.
    Returns the argument for atexit.unregister()."""
    process = os.getpid()
    done = False

    def end() -> None:
        nonlocal done
        if os.getpid() == process and not done:
            done = True
            function(*arguments)

    known = sys.modules.get("multiprocessing.process")
    if known and known.parent_process():
        from multiprocessing.util import Finalize

        Finalize(None, end, exitpriority=0)
    return atexit.register(end)
