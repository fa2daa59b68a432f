"""Device arrays of any framework as an address, a length and a dtype."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from .build import cupy


@dataclass(frozen=True)
class View:
    """A contiguous array in a device's memory."""

    address: int
    elements: int
    dtype: str
    device: int
    owner: Any  # keeps the memory alive


def queue_of(stream: Any) -> Any:
    """The CuPy stream: CuPy's own, torch's, a cudaStream_t as int; None: CuPy's current one."""
    cuda = cupy().cuda
    if stream is None:
        return cuda.get_current_stream()
    if hasattr(stream, "ptr"):
        return stream
    return cuda.ExternalStream(int(getattr(stream, "cuda_stream", stream)))


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_CUDA, _CUDA_MANAGED = 2, 13  # DLPack's device types
_CODES = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}
_TYPESTRS = {"f": "float", "i": "int", "u": "uint", "b": "bool", "c": "complex", "V": "bfloat"}


def view(array: Any, stream: Any) -> View:
    """Looks at a CuPy array, or anything with DLPack or __cuda_array_interface__, without a copy.

    Work queued on `stream` (a CuPy stream) afterwards sees the array as its owner's current stream
    leaves it. TypeError: it is no device array; ValueError: it is not contiguous."""
    is_cupy = type(array).__module__.partition(".")[0] == "cupy"
    if hasattr(array, "__dlpack__") and not is_cupy:  # CuPy does not export bfloat16
        return _from_dlpack(array, stream)
    interface = getattr(array, "__cuda_array_interface__", None)
    if interface is None:
        raise TypeError(
            f"{type(array).__name__} is no device array: pass a CuPy array, a CUDA tensor, or "
            "anything with DLPack or __cuda_array_interface__"
        )
    return _from_interface(array, interface, stream)


def _check_contiguous(array: Any, shape: list[int], strides: list[int], unit: int) -> None:
    expected = unit
    for length, stride in zip(reversed(shape), reversed(strides)):
        if length != 1 and stride != expected and 0 not in shape:
            raise ValueError(
                f"the {type(array).__name__} of shape {tuple(shape)} is not C-contiguous; "
                "make it so first (.contiguous(), cupy.ascontiguousarray)"
            )
        expected *= length


def _from_dlpack(array: Any, stream: Any) -> View:
    device_type, device = array.__dlpack_device__()
    if int(device_type) not in (_CUDA, _CUDA_MANAGED):
        raise TypeError(
            f"the {type(array).__name__} lies in host memory or on a foreign device; move it to a "
            "CUDA device first (cupy.asarray, .cuda())"
        )
    # The array's framework lets this stream wait for its own; 1 is the default stream. torch does
    # so on the current device alone.
    with cupy().cuda.Device(int(device)):
        capsule = array.__dlpack__(stream=stream.ptr or 1)
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype = ctypes.c_void_p
    get_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    tensor = _DLTensor.from_address(get_pointer(capsule, b"dltensor"))
    shape = tensor.shape[: tensor.ndim]
    if tensor.strides:
        _check_contiguous(array, shape, tensor.strides[: tensor.ndim], 1)
    lanes = f"x{tensor.lanes}" if tensor.lanes != 1 else ""
    return View(
        address=(tensor.data or 0) + tensor.byte_offset,
        elements=prod(shape),
        dtype=f"{_CODES.get(tensor.code, 'opaque')}{tensor.bits}{lanes}",
        device=int(device),
        owner=(array, capsule),
    )


def _from_interface(array: Any, interface: dict[str, Any], stream: Any) -> View:
    shape, typestr = list(interface["shape"]), interface["typestr"]
    width = int(typestr[2:])
    if interface.get("strides") is not None:
        _check_contiguous(array, shape, list(interface["strides"]), width)
    cuda = cupy().cuda
    address = interface["data"][0]
    device = cuda.runtime.pointerGetAttributes(address).device if address else cuda.Device().id
    producer = interface.get("stream")
    if producer is not None and producer != (stream.ptr or 1):
        with cuda.Device(device):
            stream.wait_event(cuda.ExternalStream(producer).record())
    return View(
        address=address,
        elements=prod(shape),
        dtype=f"{_TYPESTRS.get(typestr[1], 'opaque')}{8 * width}",
        device=device,
        owner=array,
    )


def address_of(
    name: str, array: Any, dtypes: tuple[str, ...], elements: int, beside: View, stream: Any
) -> np.uint64:
    """The address of such an array on the device of another one; 0 for None."""
    if array is None:
        return np.uint64(0)
    seen = view(array, stream)
    if seen.dtype not in dtypes:
        raise TypeError(f"{name} is of {seen.dtype}: it must be of {' or '.join(dtypes)}")
    if seen.device != beside.device:
        raise ValueError(
            f"tensors of several devices: {beside.device}, and {name} on {seen.device}"
        )
    if seen.elements != elements:
        raise ValueError(f"{name} has {seen.elements} elements: it must have {elements}")
    return np.uint64(seen.address)
