"""Functions of PyTorch's tensors for rules and split.py; numpy_ops.py has the same for NumPy's.

On a CUDA device, a number that depends on a tensor makes the host wait for the device.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from omnihvd.compression.torch_cuda import by_kernels as by_kernels
from omnihvd.compression.torch_cuda import split_masked as split_masked

abs, sign, log, isfinite, where = torch.abs, torch.sign, torch.log, torch.isfinite, torch.where
count, concatenate = torch.count_nonzero, torch.cat
HALF = (torch.float16, torch.bfloat16)
quiet = torch.no_grad  # around calls: nothing is recorded for a backward pass


def on(array: np.ndarray, like: Tensor) -> Tensor:
    """A NumPy array as a tensor on the device of `like`."""
    return torch.from_numpy(array).to(like.device)


def numpy(x: Tensor) -> np.ndarray:
    array: np.ndarray = x.detach().cpu().numpy()
    return array


def device(x: Tensor) -> torch.device:
    return x.device


def on_device(x: Tensor) -> bool:
    return x.is_cuda


def wide(x: Tensor) -> Tensor:
    """x, in float32 if its dtype is narrower."""
    return x.float() if x.dtype in HALF else x


def zeros(like: Tensor) -> Tensor:
    """In wide()'s dtype."""
    dtype = torch.float32 if like.dtype in HALF else like.dtype
    return torch.zeros(like.shape, dtype=dtype, device=like.device)


def contiguous(x: Tensor) -> Tensor:
    return x.contiguous()


def result_for(gradient: Tensor) -> Tensor:
    """The tensor for what is sent of it: itself, if it is contiguous."""
    return gradient if gradient.is_contiguous() else torch.empty_like(gradient).contiguous()


def cast(x: Tensor, like: Tensor) -> Tensor:
    return x.to(like.dtype)


def clipped(gradient: Tensor, factor: Any) -> Tensor:
    norm = torch.linalg.vector_norm(gradient, dtype=torch.float32)
    return gradient.mul_(factor(norm).to(gradient.dtype))


def norms(rows: Tensor) -> Tensor:
    """Each row's L2 norm."""
    dtype = torch.float32 if rows.dtype in HALF else None
    return torch.linalg.vector_norm(rows, dim=1, dtype=dtype)


def kth_largest(x: Tensor, k: int) -> Tensor:
    """NaN if a NaN is among them. x: not negative."""
    return torch.topk(x, k, sorted=False).values.min()


def magnitudes(x: Tensor) -> np.ndarray:
    """How many have each exponent and first 3 bits of the fraction, as float32: 2048 counts."""
    bits = x.float().abs().contiguous().view(torch.int32) >> 20
    return numpy(torch.bincount(bits, minlength=2048))


def excess(over: Tensor) -> tuple[float, float, float]:
    """How many of these numbers are above 0, and the sum and the sum of squares of those; changes
    `over`."""
    over.clamp_min_(0)
    sums, squares = float(over.sum()), float(over.dot(over))
    return float(over.sign_().sum()), sums, squares  # several times as fast as count_nonzero()


def above(total: Tensor, limit: float) -> Tensor:
    """The elements with absolute values above `limit`, 0 elsewhere."""
    return torch.nn.functional.hardshrink(total, limit)


def copy_above(total: Tensor, limit: float, out: Tensor) -> None:
    if total.dtype == out.dtype:
        torch.ops.aten.hardshrink.out(total, limit, out=out)
    else:
        out.copy_(above(total, limit))


def mask(chosen: np.ndarray, size: int, like: Tensor) -> Tensor:
    """A bool for each of `size` parts: whether it is among the chosen numbers."""
    # To a GPU from pinned memory, so that the host does not wait.
    keep = torch.zeros(size, dtype=torch.bool, pin_memory=like.is_cuda)
    keep.index_fill_(0, torch.from_numpy(chosen), True)
    return keep.to(like.device, non_blocking=True)


def places(keep: Tensor) -> Tensor:
    return keep.nonzero().squeeze(1)


def take(rows: Tensor, chosen: Tensor) -> Tensor:
    return rows.index_select(0, chosen)


def put(rows: Tensor, chosen: Tensor, values: Any) -> None:
    if isinstance(values, Tensor):
        rows.index_copy_(0, chosen, values)
    else:
        rows.index_fill_(0, chosen, values)


def subtract(total: Tensor, sent: Tensor) -> Tensor:
    """total -= sent. Where sent is not finite, 0 is left."""
    return total.sub_(sent).nan_to_num_(0.0, 0.0, 0.0)


def orthonormal(matrix: Tensor) -> Tensor:
    return torch.linalg.qr(matrix).Q
