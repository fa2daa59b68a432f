"""Block sparsifiers with error feedback: which blocks of a gradient are sent, and the residual."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from .arrays import View, address_of, queue_of, view
from .build import check, cupy, module

FORMATS = {"float32": 0, "float16": 0, "bfloat16": 1}  # as in abi.cuh
# As in sparsify.cu.
_THREADS, _CHOOSE_THREADS = 128, 1024
_CTAS = 4096  # at most: fills any GPU; CTAs loop over the blocks


class Sparsifier:
    """The kernels of sparsify.cu on the current device, for one dtype and blocks of one size.

    dtype: float32, float16 or bfloat16. cubin_file: compiled already; by default it is compiled
    now, which takes seconds.

    Raises TypeError (dtype), ValueError (block_size), ImportError (no CuPy).
    """

    def __init__(
        self, dtype: str = "float32", block_size: int = 256, cubin_file: Path | None = None
    ) -> None:
        if dtype not in FORMATS:
            raise TypeError(f"dtype {dtype} is not supported; one of {', '.join(FORMATS)} is")
        check(dtype, block_size)
        self.dtype, self.block_size = dtype, block_size
        made = module(dtype, block_size, "sparsify.cu", cubin_file)
        self._accumulate, self._choose, self._split, self._above = (
            made.get_function(name) for name in ("accumulate", "choose", "split", "above")
        )

    def split(
        self,
        gradient: Any,
        norms: Any,
        keep: Any = None,
        *,
        largest: int | None = None,
        threshold: float = math.inf,
        rest: Any = None,
        velocity: Any = None,
        momentum: float = 0.0,
        scale: float = 1.0,
        kept: Any = None,
        stream: Any = None,
    ) -> None:
        """As sparsify(), which documents the arguments, but in memory that the caller provides.

        norms: float32, one a block: overwritten. keep: uint8 or bool, one a block: which are sent,
        if `largest` is None; else it is overwritten, with 1 for each sent block. kept: int64 or
        uint64, one element: the number of sent elements is added to it."""
        queue = queue_of(stream)
        values, tensor = self._tensor(gradient, rest, velocity, momentum, queue)
        blocks = -(-values.elements // self.block_size)
        if largest is not None and keep is None:
            raise ValueError("`largest` needs memory of `keep`")
        if largest is not None and blocks and not 1 <= largest <= blocks:
            raise ValueError(f"largest is {largest}: it must be at least 1, and {blocks} at most")
        at_norms = address_of("norms", norms, ("float32",), blocks, values, queue)
        at_keep = address_of("keep", keep, ("uint8", "bool8"), blocks, values, queue)
        at_kept = address_of("kept", kept, ("int64", "uint64"), 1, values, queue)
        if not blocks:
            return
        grid = self._grid(blocks * min(self.block_size // 4, 32))
        with cupy().cuda.Device(values.device), queue:
            self._accumulate(grid, (_THREADS,), (*tensor, np.float32(momentum), at_norms))
            if largest is not None:
                arguments = at_norms, np.uint64(blocks), np.uint32(largest), at_keep
                self._choose((1,), (_CHOOSE_THREADS,), arguments)
            rule = at_norms, _float32(threshold), at_keep, at_kept
            self._split(grid, (_THREADS,), (*tensor, np.float32(scale), *rule))

    def above(
        self,
        gradient: Any,
        limit: float,
        *,
        rest: Any = None,
        velocity: Any = None,
        momentum: float = 0.0,
        kept: Any = None,
        stream: Any = None,
    ) -> None:
        """The same for single elements: sends each element with an absolute value above `limit`,
        at least 0, in units of the gradient; and each NaN. One pass."""
        queue = queue_of(stream)
        values, tensor = self._tensor(gradient, rest, velocity, momentum, queue)
        at_kept = address_of("kept", kept, ("int64", "uint64"), 1, values, queue)
        if values.elements:
            grid = self._grid(-(-values.elements // 4))
            rule = np.float32(momentum), _float32(limit), at_kept
            with cupy().cuda.Device(values.device), queue:
                self._above(grid, (_THREADS,), (*tensor, *rule))

    def _tensor(
        self, gradient: Any, rest: Any, velocity: Any, momentum: float, queue: Any
    ) -> tuple[View, tuple[Any, ...]]:
        """The view of the gradient, and the kernels' first arguments."""
        values = view(gradient, queue)
        if values.dtype != self.dtype:
            raise TypeError(f"a gradient of {values.dtype}, and kernels for {self.dtype}")
        if velocity is not None and rest is None:
            raise ValueError("a velocity needs a residual, to which it is added")
        if momentum and velocity is None:
            raise ValueError(f"momentum is {momentum}: it needs a velocity")
        whole = ("float32",), values.elements, values, queue
        return values, (
            np.uint64(values.address),
            np.uint64(values.elements),
            np.uint32(FORMATS[self.dtype]),
            address_of("rest", rest, *whole),
            address_of("velocity", velocity, *whole),
        )

    @staticmethod
    def _grid(threads: int) -> tuple[int]:
        return (min(-(-threads // _THREADS), _CTAS),)


def sparsify(
    gradient: Any,
    *,
    largest: int | None = None,
    threshold: float = math.inf,
    keep: Any = None,
    rest: Any = None,
    velocity: Any = None,
    momentum: float = 0.0,
    scale: float = 1.0,
    block_size: int = 256,
    stream: Any = None,
) -> Any:
    """Overwrites a gradient with its blocks that are to be sent, and zeros elsewhere. `rest` keeps
    the residual for the next call.

        rest = cupy.zeros_like(gradient)
        norms = omnihvd.kernels.sparsify(gradient, largest=100, rest=rest)

    Block gradient sparsification of Fei et al., "Efficient Sparse Collective Communication and its
    Application to Accelerate Distributed Deep Learning" (OmniReduce, SIGCOMM 2021); error feedback
    of Stich et al., "Sparsified SGD with memory" (NeurIPS 2018); momentum correction of Lin et al.,
    "Deep Gradient Compression" (ICLR 2018, 3.1 and 3.3). omnihvd.compression do the same.

    gradient: a contiguous array of any shape on a CUDA device, of float32, float16 or bfloat16:
    CuPy's, torch's, or any with DLPack or __cuda_array_interface__, as all arrays here. Its blocks
    have block_size elements (32 to 1024, a power of two), the last may be short. Sent are

    - the `largest` with the largest L2 norm, 1 to all of them; the first among equal ones;
    - those with a norm of at least `threshold`, in units of the gradient;
    - those that are not 0 in `keep`, uint8 or bool, one a block;
    - always, those that hold a NaN or an infinity, or overflow in the squares of their norm.

    rest: the residual, float32, as many elements as the gradient. It is added to the gradient; then
    it holds what is not sent now, and the rounding error of what is. None: the residual is lost.
    velocity: float32, as many elements; momentum x velocity + gradient replaces it and the
    gradient, and it is cleared where it is sent. Needs a rest. scale: multiplies what is sent.

    stream: CuPy's or torch's, or a cudaStream_t as int, to queue the work on; by default CuPy's
    current one. It waits for arrays that come by DLPack. Their framework does not wait for it: use
    stream=torch.cuda.current_stream() with torch's tensors. Returns at once, without waiting for
    the device, except for the first call for a dtype and a block size, which compiles the kernels:
    seconds.

    (Sparsifier.above() is for single elements.)

    Returns the blocks' L2 norms, before anything was sent: a CuPy array of float32.

    For the same choice of blocks, all results but the norms are bit for bit those of PyTorch's
    operators on CPUs (except for the payload of NaNs). Squares are added in float32, in a fixed
    order of their own: if norms differ by rounding alone, another block may be chosen than there,
    but always the same one here.

    Raises TypeError (no device array; dtype), ValueError (not contiguous; several devices; too few
    elements; block_size; arguments that do not go together), ImportError (no CuPy).
    """
    queue = queue_of(stream)
    seen = view(gradient, queue)
    with cupy().cuda.Device(seen.device), queue:
        if largest is not None and keep is not None:
            raise ValueError("`largest` and `keep` both say which blocks are sent")
        own = Sparsifier(seen.dtype, block_size)
        blocks = -(-seen.elements // block_size)
        norms = cupy().empty(blocks, np.float32)
        if largest is not None:
            keep = cupy().empty(blocks, np.uint8)
        own.split(
            gradient, norms, keep, largest=largest, threshold=threshold, rest=rest,
            velocity=velocity, momentum=momentum, scale=scale, stream=queue,
        )  # fmt: skip
    return norms


def _float32(value: float) -> np.float32:
    """Without a warning where it becomes infinite; 0, where it is -0."""
    with np.errstate(over="ignore"):
        return np.float32(value) + np.float32(0)
