"""The kernels for blocks of CUDA tensors (omnihvd.kernels.Sparsifier), where they can be had."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import torch
from torch import Tensor

from omnihvd.carriers import kernel_cache
from omnihvd.log import warn_once_per_job

# The kernels' dtype, by the gradient's.
COMPILED = {
    torch.float32: "float32",
    torch.float16: "float16",
    torch.bfloat16: "float16",
}


def sparsifier(gradient: Tensor, block_size: int) -> Any:
    """The kernels on the gradient's device; None: use PyTorch's operators. The first call for a
    dtype and a block size loads the kernels, and compiles them if no process on this machine has
    done so."""
    if not gradient.is_cuda or gradient.dtype not in COMPILED:
        return None
    return _loaded(gradient.device, gradient.dtype, block_size)


@functools.cache
def _loaded(device: torch.device, dtype: torch.dtype, block_size: int) -> Any:
    compiled = COMPILED[dtype]
    try:
        kernels = importlib.import_module("omnihvd.kernels")  # slow, and needs CuPy
        with torch.cuda.device(device):
            arch = "sm_{}{}".format(*torch.cuda.get_device_capability(device))
            kernel_cache.compile_missing(arch, block_size, [compiled], "sparsify")
            file = kernel_cache.path_of(compiled, block_size, arch, "sparsify")
            return kernels.Sparsifier(str(dtype).rpartition(".")[2], block_size, file)
    except (ImportError, OSError, RuntimeError, ValueError) as why:
        _say(str(why).partition("\n")[0])
        return None


@functools.cache
def _say(why: str) -> None:
    warn_once_per_job(f"PyTorch's operators, not kernels, compress blocks of CUDA tensors: {why}")
