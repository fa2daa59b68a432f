"""Times of work on a GPU by CuPy's events, for kernels_gpu.py and union_gpu.py."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

REPEATS, SAMPLES = 10, 15


def usable_gpu() -> tuple[Any, str]:
    """CuPy, and the device's name. Ends the script if there is no GPU."""
    try:
        import cupy

        device = cupy.cuda.Device().id
        return cupy, cupy.cuda.runtime.getDeviceProperties(device)["name"].decode()
    except Exception as error:
        sys.exit(f"no usable GPU: {error}")


def graph_of(stream: Any, work: Callable[[], object]) -> Callable[[], object]:
    """Launches `work` REPEATS times in a graph. `work` must only queue on the stream."""
    work()  # compiles, and allocates
    stream.synchronize()
    stream.begin_capture()
    for _ in range(REPEATS):
        work()
    graph = stream.end_capture()
    return lambda: graph.launch(stream)


def once(cupy: Any, stream: Any, work: Callable[[], object]) -> float:
    """Microseconds on the device of `work`, which must only queue on the stream."""
    start, end = cupy.cuda.Event(), cupy.cuda.Event()
    start.record(stream)
    work()
    end.record(stream)
    end.synchronize()
    return 1e3 * float(cupy.cuda.get_elapsed_time(start, end))


def us(cupy: Any, stream: Any, work: Callable[[], object]) -> list[float]:
    """SAMPLES of once()."""
    return [once(cupy, stream, work) for _ in range(SAMPLES + 2)][2:]
