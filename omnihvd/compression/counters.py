"""Counts the cost and yield of compression in this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Callable

_lock = threading.Lock()
_totals: dict[str, float] = {
    **dict.fromkeys(("calls", "seconds", "elements", "rounds", "exposed_seconds"), 0),
    **dict.fromkeys(("controlled_steps", "delay_seconds", "delay_bytes", "ratios"), 0),
    **dict.fromkeys(("code_bytes", "code_bytes_untimed", "code_seconds"), 0),
    **{f"certified_{name}": 0 for name in ("steps", "true", "received", "both")},
}
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
def timed(elements: int) -> Iterator[None]:
    """Counts one gradient of `elements` elements and the host time spent on it."""
    start = time.perf_counter()
    yield
    add(calls=1, seconds=time.perf_counter() - start, elements=elements)


def add(**amounts: float) -> None:
    """To totals by their names in stats()."""
    with _lock:
        for name, amount in amounts.items():
            _totals[name] += amount


def add_codes(sent_bytes: float, seconds: float | None) -> None:
    """Codes (part_sums.py) that this rank sent to others. seconds: for which it waited for the
    exchange; None: not known, since the exchange ended beside other work."""
    untimed = sent_bytes if seconds is None else 0
    add(code_bytes=sent_bytes, code_bytes_untimed=untimed, code_seconds=seconds or 0.0)


def codes() -> tuple[float, ...]:
    """code_bytes, code_bytes_untimed and code_seconds of stats()."""
    with _lock:
        return tuple(_totals[name] for name in ("code_bytes", "code_bytes_untimed", "code_seconds"))


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

    Sums of codes go by alltoall and allgather: code_bytes to other ranks; code_seconds for which
    this rank waited for them; code_bytes_untimed, which arrived beside other work, in an unknown
    time (in TensorFlow all).

    With a certificate (certificate.py), sums over certified_steps: certified_true, the squared norm
    of the true gradient; certified_received, of the optimizer's; certified_both, their dot product.
    omnihvd.stats() adds `cosine` and `relative_error` (of the norm).
    """
    with _lock:
        counts = [*_kept.values(), *_added.values()]
        return {**_totals, "kept_elements": sum(int(count) for count in counts)}


def reset() -> None:
    with _lock:
        _totals.update(dict.fromkeys(_totals, 0))
        _kept.clear()
        for count in _added.values():
            count.zero_()
