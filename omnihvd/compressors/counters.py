"""Counts the cost and yield of selection in this process, for PyTorch gradients only.

TensorFlow selects inside its graph, where there is no host clock to read.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Callable

_lock = threading.Lock()
_ZEROS = {
    "calls": 0,
    "seconds": 0.0,
    "elements": 0,
    "rounds": 0,
    "exposed_seconds": 0.0,
    "controlled_steps": 0,
    "delay_seconds": 0.0,
    "delay_bytes": 0,
    "ratios": 0.0,
}
_totals: dict[str, float] = dict(_ZEROS)
_has_own_sums = False  # of codes or factors, apart from Horovod's sums of gradients
_kept: dict[Any, Any] = {}  # by device: its running count, read from the device only in stats()
_added: dict[Any, Any] = {}  # by device: the same, of kernels that add to it


def note_own_sum() -> None:
    """Notes that a compressor or codec made its own sum: it works even if no sum is intercepted."""
    global _has_own_sums
    _has_own_sums = True


def has_own_sums() -> bool:
    return _has_own_sums


@contextmanager
def timed(elements: int, own_sum: bool = False) -> Iterator[None]:
    """Counts one gradient of `elements` elements and the host time spent on it."""
    if own_sum:
        note_own_sum()
    start = time.perf_counter()
    yield
    seconds = time.perf_counter() - start
    with _lock:
        _totals["calls"] += 1
        _totals["seconds"] += seconds
        _totals["elements"] += elements


def add_controlled(ratio: float, sent_bytes: float, seconds: float) -> None:
    """Counts a step under delay control: its ratio, and its sums' bytes and seconds."""
    with _lock:
        _totals["controlled_steps"] += 1
        _totals["ratios"] += ratio
        _totals["delay_bytes"] += sent_bytes
        _totals["delay_seconds"] += seconds


def add_exposed(seconds: float) -> None:
    """Counts seconds in which training waited for sums."""
    with _lock:
        _totals["exposed_seconds"] += seconds


def add_rounds(rounds: int) -> None:
    """Counts rounds of threshold correction."""
    with _lock:
        _totals["rounds"] += rounds


def add_kept(device: Any, count: Any) -> None:
    """Counts kept elements. count: an int, or a tensor of one integer on `device`."""
    with _lock:
        _kept[device] = _kept.get(device, 0) + count


def kept_on(device: Any, zero: Callable[[], Any]) -> Any:
    """The count on `device`, for kernels to add to; zero() makes it, once. It is never freed:
    kernels may still run on any stream."""
    with _lock:
        if device not in _added:
            _added[device] = zero()
        return _added[device]


def stats() -> dict[str, float]:
    """Totals since the start of the process, or since `reset()`.

    calls: compressed gradients. seconds: host time to select, add and split; a CUDA device may
    still be at work when the host is done. elements: elements of these gradients. kept_elements:
    elements of the blocks (or single elements) that were sent. rounds: further passes over a
    gradient to correct its threshold (dgc, sidco). exposed_seconds: time for which the optimizer
    waited for sums.

    Under delay control: controlled_steps; delay_seconds and delay_bytes of their sums; ratios, the
    sum of their ratios. omnihvd.stats() adds means: ratio, and bandwidth in bytes/s.
    """
    with _lock:
        counts = [*_kept.values(), *_added.values()]
        return {**_totals, "kept_elements": sum(int(count) for count in counts)}


def reset() -> None:
    with _lock:
        _totals.update(_ZEROS)
        _kept.clear()
        for count in _added.values():
            count.zero_()
