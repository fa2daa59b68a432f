"""Stands in for CuPy where there is no GPU: device memory is host memory, kernels are emulated.

Work on a stream is only done when somebody waits for the stream, so that a missing wait shows."""

from __future__ import annotations

import ctypes
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Callable, ClassVar

import numpy as np
from kernel_emulation import Kernels, SparsifyKernels


class Stream:
    def __init__(self, ptr: int, pending: list[Callable[[], Any]]) -> None:
        self.ptr, self._pending = ptr, pending

    def __enter__(self) -> None:
        CURRENT.append(self)

    def __exit__(self, *_: object) -> None:
        CURRENT.pop()

    def queue(self, work: Callable[[], Any]) -> None:
        self._pending.append(work)

    def synchronize(self) -> None:
        while self._pending:
            self._pending.pop(0)()

    def record(self) -> Stream:
        return self  # as an event: all that is queued so far

    def wait_event(self, event: Stream) -> None:
        self.queue(event.synchronize)

    def begin_capture(self) -> None:
        assert not self._pending, "work that is not captured"

    def end_capture(self) -> Graph:
        works, self._pending[:] = list(self._pending), []
        return Graph(works)


class Graph:
    def __init__(self, works: list[Callable[[], Any]]) -> None:
        self._works = works

    def launch(self, stream: Stream) -> None:
        for work in self._works:
            stream.queue(work)


class Event:
    def record(self, stream: Stream) -> None:
        self._stream = stream

    def synchronize(self) -> None:
        self._stream.synchronize()


ALLOCATED: list[np.ndarray] = []  # CuPy's pool keeps memory, and reuses it in stream order
PINNED: list[PinnedMemory] = []
PENDING: dict[int, list[Callable[[], Any]]] = {}


def stream_at(ptr: int) -> Stream:
    return Stream(ptr, PENDING.setdefault(ptr, []))


CURRENT = [stream_at(0)]


class PinnedMemory(bytearray):
    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.address, self.size = np.frombuffer(self, np.uint8).ctypes.data, size
        PINNED.append(self)


class DeviceMemory:
    def __init__(self, array: np.ndarray) -> None:
        self.ptr, self._nbytes = array.ctypes.data, array.nbytes

    def memset_async(self, value: int, nbytes: int, stream: Stream) -> None:
        assert nbytes <= self._nbytes
        stream.queue(lambda: ctypes.memset(self.ptr, value, nbytes))

    def copy_from_device_async(self, other: DeviceMemory, nbytes: int, stream: Stream) -> None:
        assert nbytes <= min(self._nbytes, other._nbytes)
        stream.queue(lambda: ctypes.memmove(self.ptr, other.ptr, nbytes))

    def copy_from_host_async(self, address: int, nbytes: int, stream: Stream) -> None:
        assert nbytes <= self._nbytes
        if any(address - held.address in range(held.size) for held in PINNED):
            stream.queue(lambda: ctypes.memmove(self.ptr, address, nbytes))
        else:  # CUDA reads pageable memory before the call returns
            source = ctypes.string_at(address, nbytes)
            stream.queue(lambda: ctypes.memmove(self.ptr, source, nbytes))

    def copy_to_host_async(self, address: int, nbytes: int, stream: Stream) -> None:
        assert nbytes <= self._nbytes
        stream.queue(lambda: ctypes.memmove(address, self.ptr, nbytes))


class Device:
    current: ClassVar[list[int]] = [0]  # the last of these
    compute_capability = "90"

    def __init__(self, index: int | None = None) -> None:
        self.id = self.current[-1] if index is None else index

    def __enter__(self) -> None:
        self.current.append(self.id)

    def __exit__(self, *_: object) -> None:
        self.current.pop()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device)

    __hash__ = None  # type: ignore[assignment]

    def synchronize(self) -> None:
        for ptr in list(PENDING):
            stream_at(ptr).synchronize()


class ndarray(np.ndarray):
    """Named and placed as CuPy's."""

    __module__ = "cupy"

    @property
    def data(self) -> DeviceMemory:  # type: ignore[override]
        return DeviceMemory(self)

    def get(self) -> np.ndarray:
        return np.array(self)

    @property
    def device(self) -> Device:  # type: ignore[override]
        return Device()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        interface = dict(self.__array_interface__)
        interface["stream"] = CURRENT[-1].ptr or 1
        return interface


def device_array(values: np.ndarray) -> ndarray:
    array = np.empty(values.shape, values.dtype).view(ndarray)
    array[...] = values
    return array


def cubin(dtype: str, block_size: int, arch: str, source: str = "kernels.cu") -> bytes:
    """In place of that of omnihvd.kernels.build: a text that says which it is."""
    assert arch == f"sm_{Device.compute_capability}"
    return f"{source} {dtype} {block_size}".encode()


def cupy_double(folder: Any) -> ModuleType:
    """A module to put into sys.modules as cupy. `folder`: for the emulated kernels."""

    class Module:
        """The driver's; for it a module is what cubin() makes."""

        def load(self, cubin: bytes) -> None:
            source, dtype, block_size = cubin.decode().split()
            made = {"kernels.cu": Kernels, "sparsify.cu": SparsifyKernels}[source]
            self._kernels = made(dtype, int(block_size), folder)

        def load_file(self, path: str) -> None:
            self.load(Path(path).read_bytes())

        def get_function(self, name: str) -> Callable[..., None]:
            return lambda grid, block, args: CURRENT[-1].queue(
                lambda: self._kernels.launch(name, grid, block, args)
            )

    def empty(n: int, dtype: Any) -> ndarray:
        ALLOCATED.append(device_array(np.full(n, 0xEE, dtype)))
        return ALLOCATED[-1]

    def memset(address: int, value: int, nbytes: int, stream: int) -> None:
        stream_at(stream).queue(lambda: ctypes.memset(address, value, nbytes))

    module = ModuleType("cupy")
    module.ndarray = ndarray
    module.empty = empty
    module.asarray = device_array
    module.empty_like = lambda array: empty(len(array), array.dtype)
    module.cuda = SimpleNamespace(
        Device=Device,
        Event=Event,
        Stream=lambda **_: stream_at(0x1000 + len(PENDING)),
        get_elapsed_time=lambda start, end: 1.0,
        ExternalStream=lambda ptr: stream_at(0 if ptr == 1 else ptr),
        get_current_stream=lambda: CURRENT[-1],
        alloc_pinned_memory=PinnedMemory,
        function=SimpleNamespace(Module=Module),
        runtime=SimpleNamespace(
            memsetAsync=memset, pointerGetAttributes=lambda ptr: SimpleNamespace(device=0)
        ),
    )
    return module


class DLPack:
    """A tensor that has nothing but DLPack, on the device given."""

    def __init__(self, array: np.ndarray, code: int, device_type: int = 2, strides: bool = True):
        self.array, self._device_type = array, device_type
        self._shape = (ctypes.c_int64 * array.ndim)(*array.shape)
        self._strides = (ctypes.c_int64 * array.ndim)(*(s // array.itemsize for s in array.strides))
        offset = 8  # DLPack allows one
        self._managed = ctypes.create_string_buffer(128)
        head = np.frombuffer(self._managed, np.uint8)
        fields = [
            np.array([array.ctypes.data - offset], np.uint64),
            np.array([device_type, 0, array.ndim], np.int32),
            np.array([code, array.itemsize * 8], np.uint8),
            np.array([1], np.uint16),
            np.array([ctypes.addressof(self._shape),
                      ctypes.addressof(self._strides) if strides else 0, offset], np.uint64),
        ]  # fmt: skip
        packed = np.concatenate([field.view(np.uint8) for field in fields])
        head[: len(packed)] = packed
        self.stream: int | None = None

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device_type, 0

    def __dlpack__(self, stream: int | None = None) -> object:
        _, device = self.__dlpack_device__()
        if Device.current[-1] != device:  # as torch
            raise BufferError("the tensor lies on another device than the current one")
        self.stream = stream
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = (
            ctypes.py_object,
            [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p],
        )
        return new(ctypes.addressof(self._managed), b"dltensor", None)
