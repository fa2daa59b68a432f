"""What is to be done when this process ends, but not when a child that it forked off does: that has
copies of the objects, but none of their threads, and its parent goes on with all else."""

from __future__ import annotations

import atexit
import os
from typing import Any, Callable


def at_exit(function: Callable[..., Any], *arguments: Any) -> Callable[[], None]:
    """As atexit.register(); returns what atexit.unregister() takes."""
    process = os.getpid()

    def end() -> None:
        if os.getpid() == process:
            function(*arguments)

    return atexit.register(end)
