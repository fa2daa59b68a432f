"""CUDA kernels: find, unite, compact and scatter a tensor's non-zero blocks; codecs; sparsifiers.

The shim for NCCL launches the first as they are compiled here (`omnihvd kernels`). In Python there
are `Coder`, which turns blocks of float32 into codes of few bits, and adds up such; and `sparsify`
and `Sparsifier`, which leave of a gradient the blocks that are to be sent, and keep the rest. Their
arrays are CuPy's, or any that have DLPack or __cuda_array_interface__. Importing this needs neither
CuPy nor a GPU.

Types: float16, bfloat16, float32, float64, int8, uint8, int32, int64. Blocks: 32 to 1024
elements, a power of two; the last may be short. An element is zero if its value is 0 or -0.0; NaN
is not.
"""

from .build import BLOCK_SIZES, DTYPES, cubin, module
from .codes import Coder
from .sparsifier import FORMATS, Sparsifier, sparsify

__all__ = [
    "BLOCK_SIZES",
    "DTYPES",
    "FORMATS",
    "Coder",
    "Sparsifier",
    "cubin",
    "module",
    "sparsify",
]
