"""CUDA kernels: find, unite, compact and scatter a tensor's non-zero blocks; codecs.

The shim for NCCL launches them as they are compiled here (`omnihvd kernels`). In Python there is
`Coder`, which turns blocks of float32 into codes of few bits, and adds up such. Importing this
needs neither CuPy nor a GPU.

Types: float16, bfloat16, float32, float64, int8, uint8, int32, int64. Blocks: 32 to 1024
elements, a power of two; the last may be short. An element is zero if its value is 0 or -0.0; NaN
is not.
"""

from .build import BLOCK_SIZES, DTYPES, cubin, module
from .codes import Coder

__all__ = ["BLOCK_SIZES", "DTYPES", "Coder", "cubin", "module"]
