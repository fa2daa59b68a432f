"""Non-zero blocks of device arrays of any framework: which there are, gathered, written back.

They are the blocks of OmniReduce (Fei et al., SIGCOMM 2021, section 3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .arrays import View, queue_of, view
from .build import DTYPES, check, cupy, module

# As in abi.cuh.
_PACK = 1
_TILE_BYTES = 8192
_TILE_UNIT = 128
_COMPACT_THREADS = 128
_SCATTER_THREADS = 256
_SCATTER_CTAS = 1024
_WORD_THREADS = 128
_WORD_CTAS = 2048


class Staging:
    """Device and pinned host memory, allocated when first needed, kept, and replaced only by more.

    The next use for the same purpose overwrites earlier results. Use it on one stream at a time."""

    def __init__(self) -> None:
        self._device: dict[str, Any] = {}
        self._pinned: dict[str, Any] = {}

    def device(self, purpose: str, nbytes: int) -> Any:
        """uint8 CuPy array on the current device."""
        held = self._device.get(purpose)
        if held is None or held.nbytes < nbytes or held.device != cupy().cuda.Device():
            held = self._device[purpose] = cupy().empty(max(nbytes, 16), np.uint8)
        return held[:nbytes]

    def pinned(self, purpose: str, nbytes: int) -> np.ndarray:
        """uint8 NumPy array that the device can copy from and to asynchronously."""
        held = self._pinned.get(purpose)
        if held is None or held.nbytes < nbytes:
            size = 1 << max(nbytes - 1, 15).bit_length()  # sizes vary, and pinning is slow
            memory = cupy().cuda.alloc_pinned_memory(size)
            held = self._pinned[purpose] = np.frombuffer(memory, np.uint8, size)
        return held[:nbytes]


@dataclass
class HostBlocks:
    """Non-zero blocks of a tensor, in host memory, in any order."""

    elements: int  # of the tensor
    dtype: str
    block_size: int  # elements
    blocks: np.ndarray  # uint64: number of each block
    offsets: np.ndarray  # uint64: where its bytes begin in data
    lengths: np.ndarray  # uint64: bytes; fewer than its elements take if it is packed
    data: np.ndarray  # uint8
    bitmap: np.ndarray | None = None  # uint32: bit b % 32 of word b // 32 is block b's

    def check(self) -> None:
        """Raises ValueError unless all blocks lie in the tensor and in the data."""
        if not len(self.blocks) == len(self.offsets) == len(self.lengths):
            raise ValueError("blocks, offsets and lengths differ in length")
        if not len(self.blocks):
            return
        if int(self.blocks.max()) * self.block_size >= self.elements:
            raise ValueError(f"block {self.blocks.max()} lies beyond {self.elements} elements")
        if int(self.lengths.max()) > self.block_size * DTYPES[self.dtype][0]:
            raise ValueError(f"{self.lengths.max()} bytes are more than a block")
        if int((self.offsets + self.lengths).max()) > self.data.nbytes:
            raise ValueError(f"a block ends behind the {self.data.nbytes} bytes of data")


class Blocks:
    """Non-zero blocks of a tensor, in device memory.

    `bitmap` (uint32) has bit b % 32 of word b // 32 set if block b is not zero. `records` (uint64,
    count x 2) has a row for each such block, in no particular order: its number, and its byte
    offset in `data` << 16 | its bytes. Offsets are multiples of 16. A block of fewer bytes than its
    elements take is packed: a bit for each element (bit i % 8 of byte i // 8), then the elements
    that are not zero. The non-zero blocks of each 8 KiB of the tensor lie together in `data`, from
    a multiple of 128 bytes on.
    """

    def __init__(
        self, elements: int, dtype: str, block_size: int, buffers: dict[str, Any], stream: Any,
        staging: Staging, owners: Sequence[View],
    ) -> None:  # fmt: skip
        self.elements, self.dtype, self.block_size = elements, dtype, block_size
        self.bitmap = buffers["bitmap"].view(np.uint32)
        self._records, self._data = buffers["records"].view(np.uint64), buffers["data"]
        self._totals = buffers["totals"]
        self._stream, self._staging = stream, staging
        self._owners: Sequence[View] | None = owners  # until the kernel has read them
        self._known: tuple[int, int] | None = None

    def _wait(self) -> tuple[int, int]:
        if self._known is None:
            totals = _download(self._totals, self._staging, "totals", self._stream).view(np.uint64)
            self._stream.synchronize()
            self._known = int(totals[0]), int(totals[1])
            self._owners = None
        return self._known

    @property
    def count(self) -> int:
        """Non-zero blocks. Waits for the kernel."""
        return self._wait()[0]

    @property
    def records(self) -> Any:
        return self._records[: 2 * self.count].reshape(-1, 2)

    @property
    def data(self) -> Any:
        return self._data[: self._wait()[1]]

    def to_host(self) -> HostBlocks:
        """Copies the blocks, and nothing else, to pinned memory of the staging; waits for it."""
        records, data = self.records, self.data  # waits
        host = {
            name: _download(array, self._staging, name, self._stream)
            for name, array in [("bitmap", self.bitmap), ("records", records), ("data", data)]
        }
        self._stream.synchronize()
        table = host["records"].view(np.uint64).reshape(-1, 2)
        return HostBlocks(
            elements=self.elements,
            dtype=self.dtype,
            block_size=self.block_size,
            blocks=table[:, 0],
            offsets=table[:, 1] >> np.uint64(16),
            lengths=table[:, 1] & np.uint64(0xFFFF),
            data=host["data"],
            bitmap=host["bitmap"].view(np.uint32),
        )


def detect(tensor: Any, block_size: int = 256, *, stream: Any = None) -> Any:
    """Finds a tensor's non-zero blocks: a CuPy array of uint8 ``[blocks]``, 1 for each of them.

    ``tensor``, ``stream`` and the errors are compact's, but for sequences: there is one array.
    The last block may be short: ``blocks`` is the number of elements over ``block_size``, rounded
    up. Returns at once; work queued on the stream afterwards sees the result.
    """
    queue = queue_of(stream)
    seen = view(tensor, queue)
    check(seen.dtype, block_size)
    blocks = -(-seen.elements // block_size)
    words = -(-blocks // 32)
    with cupy().cuda.Device(seen.device), queue:
        marks = cupy().empty(32 * words + 4, np.uint8)  # a trailer, which sums use, follows
        if words:
            module(seen.dtype, block_size).get_function("mark")(
                (min(-(-words // (_WORD_THREADS // 32)), _WORD_CTAS),),
                (_WORD_THREADS,),
                (
                    *(np.uint64(seen.address), np.uint64(seen.elements)),
                    *(np.uint32(0), np.uint32(0), np.uint64(marks.data.ptr)),
                ),
            )
    return marks[:blocks]


def compact(
    tensor: Any,
    block_size: int = 256,
    *,
    pack: bool = True,
    staging: Staging | None = None,
    stream: Any = None,
) -> Blocks:
    """Finds and gathers the non-zero blocks of a tensor in one read of it.

    ``tensor``: a contiguous device array of a supported dtype (CuPy, or DLPack, or
    ``__cuda_array_interface__``) of any shape, or a sequence of them, which are taken as one
    tensor, one after another. It is only read.
    ``block_size``: elements of a block, a power of two from 32 to 1024.
    ``pack``: blocks that are mostly zeros become packed (see Blocks).
    ``staging``: holds the result until its next use; by default, one of its own.
    ``stream``: CuPy's or torch's, or a cudaStream_t as int, to queue the work on; by default CuPy's
    current one. It waits for a tensor that comes by DLPack. Nobody waits for it, so use torch's
    tensors with ``stream=torch.cuda.current_stream()``. Returns at once.

    Raises TypeError (not a device array; dtype), ValueError (not contiguous; several dtypes or
    devices; block_size), ImportError (no CuPy).
    """
    queue = queue_of(stream)
    views = _views(tensor, queue)
    dtype = views[0].dtype
    check(dtype, block_size)
    width = DTYPES[dtype][0]
    elements = sum(v.elements for v in views)
    blocks = -(-elements // block_size)
    staging = staging or Staging()
    with cupy().cuda.Device(views[0].device), queue:
        bitmap_bytes = -(-blocks // 32) * 4
        counters = staging.device("counters", 16 + bitmap_bytes)
        buffers = {
            "totals": counters[:16],
            "bitmap": counters[16:],
            "records": staging.device("records", blocks * 16),
            "data": staging.device("data", -(-elements * width // _TILE_UNIT) * _TILE_UNIT),
        }
        counters.data.memset_async(0, counters.nbytes, queue)
        per_cta = _TILE_BYTES // width * (_COMPACT_THREADS // 32)
        if elements:
            module(dtype, block_size).get_function("compact")(
                (-(-elements // per_cta),),
                (_COMPACT_THREADS,),
                (
                    *_tensor_arguments(views, staging, queue),
                    np.uint32(_PACK if pack else 0),
                    *(np.uint64(buffers[name].data.ptr) for name in
                      ("totals", "bitmap", "records", "data")),
                ),
            )  # fmt: skip
    return Blocks(elements, dtype, block_size, buffers, queue, staging, views)


def scatter(
    blocks: Blocks | HostBlocks,
    out: Any,
    *,
    zero: bool = False,
    staging: Staging | None = None,
    stream: Any = None,
) -> None:
    """Writes blocks to where they belong in `out`.

    ``out``: a device array, or a sequence of them, as for compact, of the blocks' dtype and number
    of elements. ``zero``: the other blocks become zero; else they are left as they are, as a sum in
    place needs it. ``staging``: for copies of HostBlocks; their pinned arrays must not change until
    the stream has done its work. ``stream``: as for compact. Returns at once.

    Raises what compact raises, and ValueError if ``out`` does not fit the blocks.
    """
    queue = queue_of(stream)
    views = _views(out, queue)
    dtype, block_size = blocks.dtype, blocks.block_size
    check(dtype, block_size)
    width = DTYPES[dtype][0]
    elements = sum(v.elements for v in views)
    if (views[0].dtype, elements) != (dtype, blocks.elements):
        raise ValueError(
            f"out has {elements} elements of {views[0].dtype}, "
            f"the blocks are of a tensor of {blocks.elements} of {dtype}"
        )
    staging = staging or Staging()
    with cupy().cuda.Device(views[0].device), queue:
        if isinstance(blocks, HostBlocks):
            blocks.check()
            table = np.empty((len(blocks.blocks), 2), np.uint64)
            table[:, 0] = blocks.blocks
            table[:, 1] = blocks.offsets
            table[:, 1] = table[:, 1] << np.uint64(16) | np.asarray(blocks.lengths, np.uint64)
            records = _upload(table.reshape(-1).view(np.uint8), staging, "table", queue)
            data = _upload(blocks.data, staging, "payload", queue)
            count = _upload(
                np.array([len(table)], np.uint64).view(np.uint8), staging, "count", queue
            )
            most = len(table)
        else:
            records, data, count = blocks._records, blocks._data, blocks._totals
            most = -(-elements // block_size)
        if zero:
            for v in views:
                cupy().cuda.runtime.memsetAsync(v.address, 0, v.elements * width, queue.ptr)
        if not most:
            return
        per_cta = _SCATTER_THREADS // min(block_size * width // 16, 32)
        module(dtype, block_size).get_function("scatter")(
            (min(-(-most // per_cta), _SCATTER_CTAS),),
            (_SCATTER_THREADS,),
            (
                *_tensor_arguments(views, staging, queue),
                np.uint64(records.data.ptr),
                np.uint64(count.data.ptr),
                np.uint64(data.data.ptr),
            ),
        )


def _views(tensor: Any, queue: Any) -> list[View]:
    parts = tensor if isinstance(tensor, (list, tuple)) else [tensor]
    if not parts:
        raise ValueError("an empty sequence of tensors")
    views = [view(part, queue) for part in parts]
    for name in ("dtype", "device"):
        found = sorted({str(getattr(v, name)) for v in views})
        if len(found) > 1:
            raise ValueError(f"tensors of several {name}s: {', '.join(found)}")
    return views


def _tensor_arguments(views: Sequence[View], staging: Staging, queue: Any) -> tuple[Any, ...]:
    """The first four arguments of both kernels."""
    elements = np.uint64(sum(v.elements for v in views))
    if len(views) == 1:
        return np.uint64(views[0].address), elements, np.uint64(0), np.uint32(0)
    full = [v for v in views if v.elements]
    ends = np.cumsum([v.elements for v in full])
    table = np.array([[v.address, end] for v, end in zip(full, ends)], np.uint64)
    segments = _upload(table.reshape(-1).view(np.uint8), staging, "segments", queue)
    return np.uint64(0), elements, np.uint64(segments.data.ptr), np.uint32(len(full))


def _upload(array: np.ndarray, staging: Staging, purpose: str, queue: Any) -> Any:
    """To the device, in stream order. CUDA has read pageable memory when this returns."""
    device = staging.device(purpose, array.nbytes)
    if array.nbytes:
        device.data.copy_from_host_async(array.ctypes.data, array.nbytes, queue)
    return device


def _download(array: Any, staging: Staging, purpose: str, queue: Any) -> np.ndarray:
    host = staging.pinned(purpose, array.nbytes)
    if array.nbytes:
        array.data.copy_to_host_async(host.ctypes.data, array.nbytes, queue)
    return host
