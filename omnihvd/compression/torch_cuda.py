"""Splits CUDA tensors: by kernels (omnihvd.kernels.Sparsifier) where they can be had."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import torch
from torch import Tensor

from omnihvd.compression import counters
from omnihvd.compression.methods.threshold import ElementThreshold
from omnihvd.compression.rules import BlockRule, RandomBlocks, ThresholdBlocks
from omnihvd.intercept import kernel_cache
from omnihvd.log import warn_once

# The kernels' dtype, by the gradient's.
COMPILED = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "float16"}


def by_kernels(gradient: Tensor, state: Any, config: Any, call: Any) -> Tensor | None:
    """The part to send, as split.split. None, with nothing done, where no kernels exist for it. The
    host does not wait for the device."""
    rule, momentum, ops = config.rule, config.momentum, call.ops
    kernels = None
    if isinstance(rule, (BlockRule, ElementThreshold)):
        kernels = sparsifier(gradient, config.block_size)
    kept = [tensor for tensor in (state.rest, state.velocity) if tensor is not None]
    narrow = any(tensor.dtype != torch.float32 for tensor in kept)  # saved by another configuration
    if kernels is None or narrow or (state.velocity is not None and not momentum):
        return None
    out = gradient.contiguous()
    device = out.device
    flat = out.detach().view(-1)
    rest = state.begin(ops, gradient, momentum).view(-1) if config.error_feedback else None
    how: dict[str, Any] = {
        "rest": rest,
        "velocity": state.velocity.view(-1) if state.velocity is not None else None,
        "momentum": momentum,
        "kept": counters.kept_on(device, lambda: torch.zeros(1, dtype=torch.int64, device=device)),
        "stream": torch.cuda.current_stream(device) if out.is_cuda else None,
    }
    if isinstance(rule, ElementThreshold):
        kernels.above(flat, rule.threshold, **how)
        return out
    keep: Tensor | None = None
    if isinstance(rule, ThresholdBlocks):
        how["threshold"] = rule.threshold
    elif isinstance(rule, RandomBlocks):
        keep = ops.mask(rule.drawn(call), call.parts, flat)
    else:
        keep = torch.empty(call.parts, dtype=torch.uint8, device=device)
        how["largest"] = call.count
    norms = torch.empty(call.parts, dtype=torch.float32, device=device)
    how["scale"] = 1.0 if config.error_feedback else rule.scale(call)
    kernels.split(flat, norms, keep, **how)
    return out


def split_masked(
    ops: Any,
    keep: Tensor,
    scale: float,
    keep_rest: bool,
    total: Tensor,
    out: Tensor,
    *velocity: Any,
) -> Tensor:
    """As split._split_listed; to list the kept rows would make the host wait for the device."""
    mask = keep.unsqueeze(1)
    sent = torch.where(mask, total * scale, 0).to(out.dtype)
    if keep_rest:
        ops.subtract(total, sent)
    for cleared in velocity:
        cleared.masked_fill_(mask, 0)
    out.copy_(sent)
    return keep.count_nonzero() * total.shape[1]


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
        first = str(why).partition("\n")[0]
        warn_once(f"PyTorch's operators, not kernels, compress blocks of CUDA tensors: {first}")
        return None
