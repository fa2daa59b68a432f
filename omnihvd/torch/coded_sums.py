"""Averages GPU tensors under a codec, by a process group's own all-to-all and all-gather.

    encode | all_to_all | decode, add, divide | encode | all_gather | decode

Each rank owns an equal range of the tensor's blocks. It decodes the ranks' contributions, adds them
in float32 in the order of ranks, and encodes the average once, so all ranks decode the same bits.
Everything is queued on the current stream. The host waits only once for each codec, to check that
all ranks have the same. If a rank uses another codec later, the sum becomes NaN or hangs in the
library.
"""

from __future__ import annotations

import functools
import importlib
import weakref
from typing import Any, Protocol

import torch
from torch import distributed as dist
from torch.distributed import PrefixStore
from torch.futures import Future

from omnihvd.compression import counters
from omnihvd.compression.codec import Codec
from omnihvd.compression.compressor import default_block_size
from omnihvd.intercept import kernel_cache
from omnihvd.torch.meetings import Meetings
from omnihvd.torch.union import all_gather

SUMS = 2**32 - 1  # in place of the encoding rank's number
Coding = tuple[int, int]
Rests = dict[int, torch.Tensor]


class Coder(Protocol):
    """The interface of omnihvd.kernels.Coder."""

    block_size: int

    def parcel_bytes(self, coding: Coding, blocks: int) -> int: ...

    def encode(
        self, tensor: Any, parcels: Any, coding: Coding, parcel_blocks: int, *, seed: int,
        who: int, first_block: int = 0, rest: Any = None, stream: Any = None,
    ) -> None: ...  # fmt: skip

    def decode(
        self, parcels: Any, out: Any, coding: Coding, parcel_blocks: int, *, seed: int,
        count: int = 1, stream: Any = None,
    ) -> None: ...  # fmt: skip


LATE_S = 600  # a rank may come so late to its first sum, as to one of NCCL's


class CodedSums:
    """A process group's coded sums. All ranks call them in the same order."""

    def __init__(self, group: Any, coder: Coder) -> None:
        self._group, self._coder = weakref.ref(group), coder
        self._rank, self._size = group.rank(), group.size()
        store = PrefixStore("omnihvd coded", group.get_group_store())
        self._meetings = Meetings(store, self._rank, self._size)
        self._made = 0

    @torch.no_grad()
    def average(self, tensor: torch.Tensor, codec: Codec, rests: Rests, number: int) -> None:
        """Averages a floating-point tensor in place. rests[number]: its residual of error feedback.
        RuntimeError, on all ranks, if one has another codec."""
        if self._size == 1 or tensor.numel() == 0:
            return
        self._meetings.agree_on(f"{codec.name} in blocks of {self._coder.block_size}", LATE_S)
        floats = tensor.to(torch.float32).contiguous().view(-1)  # itself, if it is that
        self._average(floats, codec, rests, number)
        if floats.data_ptr() != tensor.data_ptr():
            tensor.copy_(floats.view(tensor.shape))

    def _average(self, floats: torch.Tensor, codec: Codec, rests: Rests, number: int) -> None:
        self._made += 1
        counters.note_own_sum()
        engine_codec = codec.engine_codec(seed=self._made)
        up, down = engine_codec.coding(), engine_codec.coding(sums=True)
        coder = self._coder
        stream = torch.cuda.current_stream(floats.device) if floats.is_cuda else None
        how: dict[str, Any] = {"seed": self._made, "stream": stream}
        blocks = -(-floats.numel() // coder.block_size // self._size)  # of a rank
        own = floats[self._rank * blocks * coder.block_size :][: blocks * coder.block_size]

        sent = self._parcels(self._size, up, blocks, floats)
        rest = _rest(rests, number, floats) if codec.error_feedback else None
        coder.encode(floats, sent, up, blocks, who=self._rank, rest=rest, **how)
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=self._group())

        coder.decode(received, own, up, blocks, count=self._size, **how)
        own.div_(self._size)
        mine = self._parcels(1, down, blocks, floats)
        coder.encode(own, mine, down, blocks, who=SUMS, first_block=self._rank * blocks, **how)
        everything = self._parcels(self._size, down, blocks, floats)
        all_gather(everything, mine, self._group())
        coder.decode(everything, floats, down, blocks, **how)

    def _parcels(self, count: int, coding: Coding, blocks: int, like: torch.Tensor) -> torch.Tensor:
        nbytes = count * self._coder.parcel_bytes(coding, blocks)
        return torch.empty(nbytes, dtype=torch.uint8, device=like.device)


def _rest(rests: Rests, number: int, like: torch.Tensor) -> torch.Tensor:
    """A tensor's residual; zero if it had another shape (DDP rebuilds its buckets)."""
    kept = rests.get(number)
    if kept is None or kept.shape != like.shape:
        kept = torch.full_like(like, -0.0)  # adding -0.0 changes nothing
    rests[number] = kept.to(like.device)
    return rests[number]


_of_groups: weakref.WeakKeyDictionary[Any, CodedSums] = weakref.WeakKeyDictionary()


def average_on_gpu(
    group: Any, tensor: torch.Tensor, codec: Codec, rests: Rests, number: int
) -> Future[torch.Tensor]:
    """As CodedSums.average, concurrent with the current stream. ImportError without CuPy,
    ValueError if there are no kernels for the block size (OMNIHVD_BLOCK_SIZE)."""
    device = tensor.device
    stream = _stream_beside(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    future: Future[torch.Tensor] = Future(devices=[device])
    with torch.cuda.device(device), torch.cuda.stream(stream):
        sums = _of_groups.get(group)
        if sums is None:
            sums = _of_groups[group] = CodedSums(group, _kernels(device))
        sums.average(tensor, codec, rests, number)
        future.set_result(tensor)  # a waiter makes its stream wait for this one
    return future


@functools.cache
def _stream_beside(device: torch.device) -> Any:
    return torch.cuda.Stream(device)


@functools.cache
def _kernels(device: torch.device) -> Coder:
    block_size = default_block_size()
    arch = "sm_{}{}".format(*torch.cuda.get_device_capability(device))
    kernel_cache.compile_missing(arch, block_size, ["float32"])
    kernels = importlib.import_module("omnihvd.kernels")  # slow, and needs CuPy
    file = kernel_cache.path_of("float32", block_size, arch)
    coder: Coder = kernels.Coder(block_size, file)
    return coder
