"""For the scripts on ranks: a GPU, streams and communicators, of the doubles, in Python."""

from __future__ import annotations

import copy
import ctypes
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["SIZE"])
FOLDER = Path(os.environ["NCCL_DOUBLE_FOLDER"])
PATIENCE_S = 30.0

LIBRARY = ctypes.CDLL(None)  # what is preloaded, the shim before NCCL
SUCCESS, REMOTE_ERROR, IN_PROGRESS = 0, 6, 7
SUM, PROD, MAX, MIN, AVG = range(5)
# By NCCL's numbers. bfloat16: its bits.
TYPES = {
    "int8": 0, "uint8": 1, "int32": 2, "uint32": 3, "int64": 4, "uint64": 5,
    "float16": 6, "float32": 7, "float64": 8, "bfloat16": 9,
}  # fmt: skip

_u64, _size, _pointer, _int = ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int


class UniqueId(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 128)]


for name, arguments in {
    "ncclAllReduce": [_u64, _u64, _size, _int, _int, _pointer, _pointer],
    "ncclCommInitRank": [_pointer, _int, UniqueId, _int],
    "ncclCommDestroy": [_pointer],
    "ncclCommFinalize": [_pointer],
    "ncclCommAbort": [_pointer],
    "ncclCommShrink": [_pointer, _pointer, _int, _pointer, _pointer, _int],
    "ncclCommGetAsyncError": [_pointer, _pointer],
    "cuMemAlloc_v2": [_pointer, _size],
    "cuMemFree_v2": [_u64],
    "cuMemsetD8Async": [_u64, ctypes.c_uint8, _size, _pointer],
    "cuStreamCreate": [_pointer, ctypes.c_uint],
    "cuStreamDestroy_v2": [_pointer],
    "cuStreamSynchronize": [_pointer],
    "cuStreamQuery": [_pointer],
    "double_host_of": [_u64, _size],
    "double_set_capturing": [_pointer, _int],
    "double_nccl_calls": [ctypes.c_char_p],
    "double_nccl_bytes": [ctypes.c_char_p],
}.items():
    getattr(LIBRARY, name).argtypes = arguments
LIBRARY.double_host_of.restype = _pointer
LIBRARY.double_live_pieces.restype = _size
LIBRARY.double_driver_calls.restype = ctypes.c_long
LIBRARY.double_nccl_calls.restype = LIBRARY.double_nccl_bytes.restype = ctypes.c_long


def driver(name: str, *arguments: Any) -> None:
    result = getattr(LIBRARY, name)(*arguments)
    assert result == SUCCESS, f"{name}: {result}"


def use_device(number: int = 0) -> None:
    context = _pointer()
    driver("cuInit", 0)
    driver("cuDevicePrimaryCtxRetain", ctypes.byref(context), number)
    driver("cuCtxSetCurrent", context)


class Stream:
    def __init__(self) -> None:
        self.handle = _pointer()
        driver("cuStreamCreate", ctypes.byref(self.handle), 1)

    def wait(self) -> None:
        """Until all that is queued is done."""
        end = time.monotonic() + PATIENCE_S
        while LIBRARY.cuStreamQuery(self.handle) != SUCCESS:
            assert time.monotonic() < end, "the stream does not get on"
            time.sleep(1e-4)

    def close(self) -> None:
        driver("cuStreamDestroy_v2", self.handle)


class Array:
    """Elements in device memory, some behind an aligned address. `host` is what a GPU would see."""

    def __init__(self, values: np.ndarray, misaligned: int = 0) -> None:
        address = _u64()
        nbytes = max((len(values) + misaligned) * values.itemsize, 1)
        driver("cuMemAlloc_v2", ctypes.byref(address), nbytes)
        self._base = address.value
        self.address = self._base + misaligned * values.itemsize
        at = LIBRARY.double_host_of(self.address, values.nbytes)
        buffer = (ctypes.c_uint8 * values.nbytes).from_address(at)
        self.host = np.frombuffer(buffer, values.dtype)
        self.host[:] = values

    def free(self) -> None:
        driver("cuMemFree_v2", self._base)


def barrier(name: str, ranks: int = SIZE) -> None:
    """Waits until the first `ranks` have come, by other means than those under test."""
    (FOLDER / f"{name}.{RANK}").touch()
    end = time.monotonic() + PATIENCE_S
    while not all((FOLDER / f"{name}.{rank}").exists() for rank in range(ranks)):
        assert time.monotonic() < end, f"not all ranks came to {name}"
        time.sleep(1e-3)


class Communicator:
    def __init__(self, name: str, rank: int = RANK, size: int = SIZE) -> None:
        self.rank, self.size = rank, size
        self.handle = _pointer()
        unique = UniqueId(str(FOLDER / name).encode())
        driver("ncclCommInitRank", ctypes.byref(self.handle), size, unique, rank)

    def allreduce(
        self, stream: Stream, source: Array, target: Array, dtype: str, op: int = SUM,
        count: int | None = None,
    ) -> int:  # fmt: skip
        """NCCL's result, once what it has begun is queued."""
        count = len(source.host) if count is None else count
        result = LIBRARY.ncclAllReduce(
            source.address, target.address, count, TYPES[dtype], op, self.handle, stream.handle
        )
        return self.settled() if result == IN_PROGRESS else int(result)

    def async_error(self) -> int:
        error = _int()
        driver("ncclCommGetAsyncError", self.handle, ctypes.byref(error))
        return error.value

    def failure(self) -> int:
        """async_error()'s answer once it is not success; in bounded time."""
        end = time.monotonic() + PATIENCE_S
        while (error := self.async_error()) == SUCCESS:
            assert time.monotonic() < end, "waits for ever"
            time.sleep(0.01)
        return error

    def settled(self) -> int:
        """async_error()'s answer when what NCCL has begun is queued."""
        while (error := self.async_error()) == IN_PROGRESS:
            time.sleep(1e-4)
        return error

    def shrunk(self, excluded: list[int]) -> Communicator:
        """Without those ranks; what is under way ends."""
        child = copy.copy(self)
        child.handle = _pointer()
        child.size -= len(excluded)
        ranks = (_int * len(excluded))(*excluded)
        arguments = (self.handle, ranks, len(excluded), ctypes.byref(child.handle), None, 1)
        driver("ncclCommShrink", *arguments)
        return child

    def destroy(self) -> None:
        driver("ncclCommDestroy", self.handle)

    def abort(self) -> None:
        driver("ncclCommAbort", self.handle)


def first_sum(count: int = 10_000) -> tuple[Stream, Communicator, Array]:
    """On a new communicator of all ranks, which have done with it; ones in a new array. Later sums
    that are no larger need not wait for memory on all ranks."""
    stream, comm = Stream(), Communicator("all")
    x = Array(np.ones(count, np.float32))
    assert comm.allreduce(stream, x, x, "float32") == SUCCESS
    stream.wait()
    assert (x.host == SIZE).all()
    barrier("begun")
    return stream, comm, x


def group_start() -> None:
    assert LIBRARY.ncclGroupStart() == SUCCESS


def in_nccl(name: str = "ncclAllReduce") -> int:
    """How many calls have reached NCCL."""
    return int(LIBRARY.double_nccl_calls(name.encode()))


# --- types ------------------------------------------------------------------------------------


def numpy_type(dtype: str) -> np.dtype:
    return np.dtype("uint16" if dtype == "bfloat16" else dtype)


def to_dtype(numbers: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "bfloat16":
        return (numbers.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return numbers.astype(dtype)
