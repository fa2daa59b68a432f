"""The time that a stream takes for a host function (cuLaunchHostFunc); later work waits for it."""

from __future__ import annotations

import ctypes
import time

CALLS = 200


def host_function_seconds(stream: int, calls: int = CALLS) -> float:
    """For one, of `calls` that do nothing and follow each other on the stream (a CUstream), in the
    context that is current. Raises OSError without a CUDA driver, RuntimeError if it refuses."""
    driver = ctypes.CDLL("libcuda.so.1")
    nothing = ctypes.cast(ctypes.CDLL(None).free, ctypes.c_void_p)  # free(NULL)
    handle = ctypes.c_void_p(stream)

    def run(number: int) -> float:
        begin = time.perf_counter()
        for _ in range(number):
            if result := driver.cuLaunchHostFunc(handle, nothing, None):
                raise RuntimeError(f"cuLaunchHostFunc: CUDA error {result}")
        if result := driver.cuStreamSynchronize(handle):
            raise RuntimeError(f"cuStreamSynchronize: CUDA error {result}")
        return (time.perf_counter() - begin) / number

    run(10)
    return run(calls)
