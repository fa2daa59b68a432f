"""What selection cost and kept in this process: PyTorch gradients only.

TensorFlow selects inside its graph, where there is no host clock to read.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_lock = threading.Lock()
_totals = {"calls": 0, "seconds": 0.0, "elements": 0}
_kept: dict[Any, Any] = {}  # by device: its running count, which stays there until it is asked for


@contextmanager
def timed(elements: int) -> Iterator[None]:
    """Counts one gradient of `elements` elements and the host time spent on it."""
    start = time.perf_counter()
    yield
    seconds = time.perf_counter() - start
    with _lock:
        _totals["calls"] += 1
        _totals["seconds"] += seconds
        _totals["elements"] += elements


def add_kept(device: Any, count: Any) -> None:
    """`count`: elements kept; an int, or a tensor of one integer on `device`."""
    with _lock:
        _kept[device] = _kept.get(device, 0) + count


def stats() -> dict[str, float]:
    """Totals since the start of the process, or since `reset()`.

    calls: gradients compressed. seconds: host time to select, add and split; a CUDA device may
    still be at work when the host is done. elements: of the gradients seen. kept_elements: of the
    blocks (or single elements) that were sent.
    """
    with _lock:
        return {**_totals, "kept_elements": sum(int(count) for count in _kept.values())}


def reset() -> None:
    with _lock:
        _totals.update(calls=0, seconds=0.0, elements=0)
        _kept.clear()
