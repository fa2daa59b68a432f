"""What is to be done when this process ends, but not when a child that it forked off does: that has
copies of the objects, but none of their threads, and its parent goes on with all else."""

from __future__ import annotations

import atexit
import os
import sys
from typing import Any, Callable


def at_exit(function: Callable[..., Any], *arguments: Any) -> Callable[[], None]:
    """As atexit.register(), also in children of multiprocessing, which end without atexit; returns
    what atexit.unregister() takes."""
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
