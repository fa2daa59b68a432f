"""Block-sparse tensors on NVIDIA GPUs: find and gather the non-zero blocks, and write blocks back.

A tensor's non-zero blocks are what the allreduce of OmniReduce (SIGCOMM 2021, section 3) sends,
so only they have to cross PCIe. `compact` finds and gathers them in one read of the tensor;
`scatter` writes blocks to where they belong. The CUDA sources beside this file are compiled and
cached by CuPy at first use; importing this module needs neither CuPy nor a GPU.

    blocks = kernels.compact(gradient)          # on the device
    host = blocks.to_host()                     # only non-zero blocks are copied
    kernels.scatter(host, result, zero=True)

Codecs, for dense tensors: `Coder` turns blocks of float32 into codes of few bits, and adds up such.

Types: float16, bfloat16, float32, float64, int8, uint8, int32, int64. Blocks: 32 to 1024
elements, a power of two; the last may be short. An element is zero if its value is 0 or -0.0; NaN
is not.
"""

from .blocks import Blocks, HostBlocks, Staging, compact, scatter
from .build import BLOCK_SIZES, DTYPES, cubin, module
from .codes import Coder

__all__ = [
    "BLOCK_SIZES",
    "DTYPES",
    "Blocks",
    "Coder",
    "HostBlocks",
    "Staging",
    "compact",
    "cubin",
    "module",
    "scatter",
]
