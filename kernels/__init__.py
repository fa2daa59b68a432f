"""CUDA kernels: find, unite, compact and scatter a tensor's non-zero blocks; codecs; sparsifiers.

The NCCL interception launches the block kernels as compiled here (`omnihvd kernels`). The Python
interface has `detect`, `compact` and `scatter`, which find blocks, gather them and write them back;
`Coder`, which encodes blocks of float32 in a few bits per element and adds such codes; and
`sparsify` and `Sparsifier`, which leave in a gradient the blocks to be sent and keep the residual.
They take CuPy arrays, or any array with DLPack or __cuda_array_interface__. Importing
this package needs neither CuPy nor a GPU.

Types: float16, bfloat16, float32, float64, int8, uint8, int32, int64. Blocks: 32 to 1024
elements, a power of two; the last may be short. An element is zero if its value is 0 or -0.0; NaN
is not.
"""

from .blocks import Blocks, HostBlocks, Staging, compact, detect, scatter
from .build import BLOCK_SIZES, DTYPES, cubin, module
from .codes import Coder
from .sparsifier import FORMATS, Sparsifier, sparsify

__all__ = [
    "BLOCK_SIZES",
    "DTYPES",
    "FORMATS",
    "Blocks",
    "Coder",
    "HostBlocks",
    "Sparsifier",
    "Staging",
    "compact",
    "cubin",
    "detect",
    "module",
    "scatter",
    "sparsify",
]
