"""TORCH_DISTRIBUTED_DEBUG=DETAIL, under which PyTorch compares the ranks' calls.

PyTorch compares them in the backend, but omnihvd's sums bypass the backend. So omnihvd first makes
a sum of zeros there, and PyTorch compares it with the other ranks' calls.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed import DebugLevel, get_debug_level

Tensors = list[torch.Tensor]


def compares() -> bool:
    return get_debug_level() == DebugLevel.DETAIL


def compare(group: Any, collective: str, tensors: Tensors, *options: Any) -> None:
    """Makes the sum of zeros. collective: the group's method that was called with these tensors.
    RuntimeError, on all ranks, if one calls another."""
    _plain(group, collective)([_zeros(tensor) for tensor in tensors], *options).wait()


def compare_scatter(group: Any, collective: str, output: Any, given: Any, options: Any) -> None:
    flat = [_zeros(tensor).view(-1) for tensor in (output, given)]
    _plain(group, collective)(*flat, options).wait()


def _plain(group: Any, collective: str) -> Any:
    return getattr(getattr(group, "_omnihvd_plain", group), collective)


def _zeros(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.layout == torch.strided:
        return torch.zeros(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    return torch.zeros_like(tensor)
