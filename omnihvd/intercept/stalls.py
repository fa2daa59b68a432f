"""Sets Horovod's own stall check from omnihvd's settings. Horovod's ranks also wait for each other
before a sum begins, and the engine cannot see that wait."""

from __future__ import annotations

import math
import os
from typing import Any


def cover_negotiation(settings: Any) -> None:
    """Call it before hvd.init(). Variables that are already set stay."""
    for name, value in variables(settings).items():
        os.environ.setdefault(name, value)


def variables(settings: Any) -> dict[str, str]:
    """Horovod's variables. Horovod checks as often as it warns, and must have warned before it ends
    the job."""
    warning, timeout = settings.stall_warning_s, settings.timeout_s
    if timeout > 0:
        warning = min(warning or math.inf, timeout / 4)
    if warning <= 0:
        return {"HOROVOD_STALL_CHECK_DISABLE": "1"}
    found = {"HOROVOD_STALL_CHECK_TIME_SECONDS": str(math.ceil(warning))}
    if timeout > 0:
        found["HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"] = str(math.ceil(timeout))
    return found
