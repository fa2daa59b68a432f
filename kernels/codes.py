"""encode and decode: blocks of float32 in the lossy forms of omnihvd's codecs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from .arrays import View, address_of, queue_of, view
from .build import check, cupy, module

Coding = tuple[int, int]  # the quantizer and the bits of an element, as in abi.cuh

# As in abi.cuh.
HEADS_AT = _TILE_UNIT = 128
_THREADS = 128
_POWERS, _SIGN, _TWO_MEANS = 0, 4, 5
_CTAS = 4096  # at most: fills any GPU; CTAs loop over the blocks


def head_bytes(coding: Coding) -> int:
    """Bytes of a block's head."""
    return {_POWERS: 1, _SIGN: 8, _TWO_MEANS: 8}.get(coding[0], 4)


def codes_at(coding: Coding, blocks: int) -> int:
    """Where codes begin in a parcel: behind its first line and the heads of its blocks."""
    return HEADS_AT + _whole_lines(blocks * head_bytes(coding))


def parcel_bytes(coding: Coding, blocks: int, block_size: int) -> int:
    """Bytes of a parcel of so many blocks: a multiple of 128."""
    return codes_at(coding, blocks) + _whole_lines(blocks * block_size * coding[1] // 8)


def _whole_lines(nbytes: int) -> int:
    return -(-nbytes // _TILE_UNIT) * _TILE_UNIT


class Coder:
    """The two kernels on the current device, for blocks of one size.

    cubin_file: the module for float32 as `omnihvd kernels` leaves it; by default it is compiled
    now, which takes seconds.

    A coding is a quantizer and the bits of an element: engine.codec.Codec(...).coding(). Parcels
    are uint8 arrays of parcel_bytes(...) for each parcel_blocks of blocks, aligned to 128 bytes.
    codec.cuh describes their contents and the treatment of NaN. All arrays are contiguous, on one
    device.
    stream: CuPy's or torch's, or a cudaStream_t as int, to queue the work on; by default CuPy's
    current one. Methods return at once.

    Raises TypeError (no device array; dtype), ValueError (not contiguous; several devices;
    block_size; parcels that are too small), ImportError (no CuPy).
    """

    def __init__(self, block_size: int = 256, cubin_file: Path | None = None) -> None:
        check("float32", block_size)
        self.block_size = block_size
        made = module("float32", block_size, cubin_file=cubin_file)
        self._encode, self._decode = (made.get_function(name) for name in ("encode", "decode"))

    def parcel_bytes(self, coding: Coding, blocks: int) -> int:
        """Bytes of a parcel of so many blocks."""
        return parcel_bytes(coding, blocks, self.block_size)

    def encode(
        self,
        tensor: Any,
        parcels: Any,
        coding: Coding,
        parcel_blocks: int,
        *,
        seed: int,
        who: int,
        first_block: int = 0,
        rest: Any = None,
        stream: Any = None,
    ) -> None:
        """Fills as many parcels as the tensor's blocks need.

        tensor: float32, only read. rest: the residual for error feedback, float32, as many
        elements: it is added to the tensor, in place, and then holds the coding error. seed, who
        (the rank; 2**32 - 1: sums), first_block (the number of its first block): select the random
        numbers, as in the engine."""
        queue = queue_of(stream)
        values, to = self._views(tensor, parcels, queue)
        self._check(to, coding, parcel_blocks, -(-self._blocks(values) // parcel_blocks))
        at_rest = address_of("rest", rest, ("float32",), values.elements, values, queue)
        self._launch(
            self._encode, values, queue, at_rest, *map(np.uint32, (*coding, seed, who)),
            np.uint64(first_block), np.uint32(parcel_blocks), np.uint64(to.address),
        )  # fmt: skip

    def decode(
        self,
        parcels: Any,
        out: Any,
        coding: Coding,
        parcel_blocks: int,
        *,
        seed: int,
        count: int = 1,
        stream: Any = None,
    ) -> None:
        """Overwrites `out`, float32, with the decoded parcels; with NaN, where their coding or seed
        is another. count: this many consecutive parcels are added for each block, in this order;
        if it is not 1, `out` has no more blocks than one parcel."""
        queue = queue_of(stream)
        values, source = self._views(out, parcels, queue)
        of_out = -(-self._blocks(values) // parcel_blocks)
        if count < 1 or (count > 1 and of_out > 1):
            raise ValueError(f"count is {count}, and out has blocks of {of_out} parcels")
        self._check(source, coding, parcel_blocks, of_out * count)
        self._launch(
            self._decode, values, queue, *map(np.uint32, (*coding, seed, count, parcel_blocks)),
            np.uint64(source.address),
        )  # fmt: skip

    def _blocks(self, tensor: View) -> int:
        return -(-tensor.elements // self.block_size)

    def _views(self, tensor: Any, parcels: Any, queue: Any) -> tuple[View, View]:
        values, codes = view(tensor, queue), view(parcels, queue)
        if (values.dtype, codes.dtype) != ("float32", "uint8"):
            raise TypeError(
                f"a tensor of {values.dtype} and parcels of {codes.dtype}: they must be of float32 "
                "and of uint8"
            )
        if values.device != codes.device:
            raise ValueError(f"tensors of several devices: {values.device}, {codes.device}")
        return values, codes

    def _check(self, parcels: View, coding: Coding, parcel_blocks: int, count: int) -> None:
        needed = count * parcel_bytes(coding, parcel_blocks, self.block_size)
        if parcels.elements < needed:
            raise ValueError(f"parcels of {parcels.elements} bytes, where {needed} are needed")
        if parcels.address % _TILE_UNIT:
            raise ValueError(f"parcels begin at an address that is no multiple of {_TILE_UNIT}")

    def _launch(self, kernel: Any, tensor: View, queue: Any, *arguments: Any) -> None:
        lanes = min(self.block_size // 4, 32)
        ctas = -(-self._blocks(tensor) * lanes // _THREADS)
        if ctas:
            with cupy().cuda.Device(tensor.device), queue:
                kernel(
                    (min(ctas, _CTAS),),
                    (_THREADS,),
                    (np.uint64(tensor.address), np.uint64(tensor.elements), *arguments),
                )
