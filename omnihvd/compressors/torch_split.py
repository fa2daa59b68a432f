"""Splits a PyTorch gradient into the part that is sent and the residual that stays.

Error feedback (Stich et al., "Sparsified SGD with memory", NeurIPS 2018): the residual is added to
the next gradient, in the gradient's dtype or, for float16 and bfloat16, in float32.

    total = residual + gradient;  sent = part of total;  residual = total - sent, exactly

A sent element leaves 0 behind, or its rounding error where the gradient's dtype is narrower than
the residual's. Momentum correction (Lin et al., "Deep Gradient Compression", ICLR 2018, 3.1) adds a
velocity in place of the gradient, and clears it where it was sent (3.3).

A block with a NaN or an infinity is always sent: it must reach the optimizer (or its loss scaler)
at once, and must not stay in the residual.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from omnihvd.compressors import counters, torch_cuda, torch_ops
from omnihvd.compressors.compressor import Compressor, Config
from omnihvd.compressors.delay import at
from omnihvd.compressors.methods.threshold import ElementThreshold
from omnihvd.compressors.rules import (
    BlockRule,
    Call,
    ElementRule,
    RandomBlocks,
    Rule,
    ThresholdBlocks,
    ThresholdRule,
    kept_count,
    name_seed,
    random_turn,
)

_HALF = (torch.float16, torch.bfloat16)


@dataclass
class ParameterState:
    """One rank's state of one parameter. Residual and velocity have the parameter's shape."""

    name: str
    step: int = 0
    rest: Tensor | None = None
    velocity: Tensor | None = None
    memory: dict[str, Tensor] = field(default_factory=dict)  # the rule's own

    def begin(self, gradient: Tensor, momentum: float) -> Tensor:
        """Allocates missing state; returns the residual."""
        if self.rest is None:
            self.rest = _zeros_like(gradient)
        if momentum and self.velocity is None:
            self.velocity = _zeros_like(gradient)
        return self.rest

    def suits_kernels(self, momentum: float) -> bool:
        """Whether the kernels can use this state; not if another configuration saved it."""
        kept = [tensor for tensor in (self.rest, self.velocity) if tensor is not None]
        moves = self.velocity is None or momentum != 0
        return moves and all(tensor.dtype == torch.float32 for tensor in kept)

    def accumulate(self, gradient: Tensor, momentum: float) -> Tensor:
        """Adds `gradient` to the residual and returns it."""
        rest = self.begin(gradient, momentum)
        if momentum and self.velocity is not None:
            gradient = self.velocity.mul_(momentum).add_(gradient)
        return rest.add_(gradient)


def split_by(
    compressor: Compressor, gradient: Tensor, state: ParameterState, ranks: int = 1
) -> Tensor:
    """split() with the compressor's configuration, at the parameter's current step."""
    config, ratio = compressor.config, compressor.ratio(state.step)
    if config.clip is not None and not config.clip_together:
        norm = torch.linalg.vector_norm(gradient, dtype=torch.float32)
        gradient.mul_(config.clipping(norm, ranks).to(gradient.dtype))
    if config.delay:
        config = dataclasses.replace(config, rule=at(config.rule, ratio))
    return split(gradient, state, config, ratio)


@torch.no_grad()
def split(gradient: Tensor, state: ParameterState, config: Config, ratio: float) -> Tensor:
    """Returns the part of `gradient` to send, dense, zero elsewhere; `state` keeps the residual.

    A contiguous gradient is overwritten with the result, as Horovod's allreduce would overwrite it.
    """
    if _sends_all(gradient, state, config, ratio):
        with counters.timed(gradient.numel()):
            counters.add_kept(gradient.device, gradient.numel())
        state.step += 1
        return gradient
    with counters.timed(gradient.numel()):
        out = _by_kernels(gradient, state, config, ratio)
        if out is None:
            out = _by_operators(gradient, state, config, ratio)
    state.step += 1
    return out


def _by_kernels(
    gradient: Tensor, state: ParameterState, config: Config, ratio: float
) -> Tensor | None:
    """The part to send. None, with nothing done, where no kernels exist for it. The host does not
    wait for the device."""
    rule, momentum = config.rule, config.momentum
    kernels = None
    if isinstance(rule, (BlockRule, ElementThreshold)):
        kernels = torch_cuda.sparsifier(gradient, config.block_size)
    if kernels is None or not state.suits_kernels(momentum):
        return None
    out = gradient.contiguous()
    device, blocks = out.device, -(-out.numel() // config.block_size)
    flat = out.detach().view(-1)
    how: dict[str, Any] = {
        "rest": state.begin(gradient, momentum).view(-1) if config.error_feedback else None,
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
        keep = _drawn(rule, ratio, blocks, state, device)
    else:
        keep = torch.empty(blocks, dtype=torch.uint8, device=device)
        how["largest"] = kept_count(ratio, blocks)
    norms = torch.empty(blocks, dtype=torch.float32, device=device)
    how["scale"] = _scale(rule, ratio, blocks, config.error_feedback)
    kernels.split(flat, norms, keep, **how)
    return out


def _by_operators(gradient: Tensor, state: ParameterState, config: Config, ratio: float) -> Tensor:
    rule, keep_rest = config.rule, config.error_feedback
    out = gradient if gradient.is_contiguous() else torch.empty_like(gradient).contiguous()
    total = state.accumulate(gradient, config.momentum) if keep_rest else gradient.contiguous()
    tensors = [total, out] + ([state.velocity] if state.velocity is not None else [])
    flat = [tensor.view(-1) for tensor in tensors]
    if isinstance(rule, ElementRule):
        if total.dtype in _HALF:
            flat[0] = flat[0].float()
        _split_elements(rule, _call(rule, gradient, state, ratio), keep_rest, *flat)
        return out
    parts = [_rows(tensor, config.block_size) for tensor in flat]
    norms = torch.cat([_norms(rows) for rows in parts[0]])
    keep = _keep(rule, ratio, norms, state)
    scale = _scale(rule, ratio, len(norms), keep_rest)
    split_rows = _split_masked if total.is_cuda else _split_listed
    for rows in zip(*parts):
        kept = split_rows(keep[: len(rows[0])], scale, keep_rest, *rows)
        counters.add_kept(total.device, kept)
        keep = keep[len(rows[0]) :]
    return out


def _scale(rule: Rule, ratio: float, blocks: int, keep_rest: bool) -> float:
    """The factor that makes randomly drawn blocks unbiased."""
    if isinstance(rule, RandomBlocks) and not keep_rest:
        return blocks / kept_count(ratio, blocks)
    return 1.0


def _sends_all(gradient: Tensor, state: ParameterState, config: Config, ratio: float) -> bool:
    """Whether there is nothing to choose, as for most biases: then there is never a residual."""
    if state.rest is not None or not config.rule.selects:
        return False
    parts = gradient.numel()
    if not isinstance(config.rule, ElementRule):
        parts = -(-parts // config.block_size)
    return kept_count(ratio, parts) == parts


def first_memory(rule: Rule, gradient: Tensor, name: str) -> dict[str, Tensor]:
    arrays = rule.memory(name, tuple(gradient.shape)).items()
    return {kind: torch.from_numpy(array).to(gradient.device) for kind, array in arrays}


def _call(rule: ElementRule, gradient: Tensor, state: ParameterState, ratio: float) -> Call:
    if not state.memory:
        state.memory = first_memory(rule, gradient, state.name)
    seed = name_seed(state.name)
    return Call(torch_ops, gradient.numel(), ratio, seed, state.step, state.memory)


def _zeros_like(gradient: Tensor) -> Tensor:
    dtype = torch.float32 if gradient.dtype in _HALF else gradient.dtype
    return torch.zeros(gradient.shape, dtype=dtype, device=gradient.device)


def _rows(flat: Tensor, block_size: int) -> list[Tensor]:
    """`flat` as blocks, one a row: the whole ones, then the short last one on its own."""
    whole = flat.numel() // block_size
    rows = [flat[: whole * block_size].view(whole, block_size)] if whole else []
    tail = flat[whole * block_size :]
    return rows + ([tail.unsqueeze(0)] if tail.numel() else [])


def _norms(rows: Tensor) -> Tensor:
    dtype = torch.float32 if rows.dtype in _HALF else None
    return torch.linalg.vector_norm(rows, dim=1, dtype=dtype)


def _keep(rule: Rule, ratio: float, norms: Tensor, state: ParameterState) -> Tensor:
    """Which blocks to send: one bool for each norm."""
    if isinstance(rule, ThresholdBlocks):
        return ~(norms < rule.threshold)  # so written, a NaN is kept
    infinite = torch.isfinite(norms).logical_not_()
    if isinstance(rule, RandomBlocks):
        chosen = _drawn(rule, ratio, len(norms), state, norms.device)
    else:
        ranked = norms.masked_fill(infinite, math.inf)  # in place of NaN
        chosen = _largest(ranked, kept_count(ratio, len(norms)))
    return infinite.logical_or_(chosen)


def _drawn(
    rule: RandomBlocks, ratio: float, blocks: int, state: ParameterState, device: torch.device
) -> Tensor:
    """The same on all ranks: one bool for each block."""
    count = kept_count(ratio, blocks)
    shuffle, start = random_turn(state.step, count, blocks)
    random = np.random.default_rng([rule.seed, name_seed(state.name), shuffle])
    chosen = torch.from_numpy(random.permutation(blocks)[start : start + count])
    # To a GPU from pinned memory, so that the host does not wait.
    keep = torch.zeros(blocks, dtype=torch.bool, pin_memory=device.type == "cuda")
    return keep.index_fill_(0, chosen, True).to(device, non_blocking=True)


def _largest(norms: Tensor, count: int) -> Tensor:
    """Which `count` norms are the largest; the first of equal ones."""
    least = torch.topk(norms, count, sorted=False).values.min()
    above, equal = norms > least, norms == least
    return above | (equal & (equal.cumsum(0) <= count - above.sum()))


def _split_listed(
    keep: Tensor, scale: float, keep_rest: bool, total: Tensor, out: Tensor, *velocity: Tensor
) -> int:
    """out = the rows of total in `keep`, times scale; with `keep_rest`, total loses them.

    Returns the number of elements in those rows. For the CPU: only the kept rows are read again.
    """
    chosen = keep.nonzero().squeeze(1)
    kept = total.index_select(0, chosen)
    sent = kept.mul(scale).to(out.dtype)
    if keep_rest:
        total.index_copy_(0, chosen, _subtract(kept, sent))
    for cleared in velocity:
        cleared.index_fill_(0, chosen, 0)
    out.zero_().index_copy_(0, chosen, sent)
    return kept.numel()


def _split_masked(
    keep: Tensor, scale: float, keep_rest: bool, total: Tensor, out: Tensor, *velocity: Tensor
) -> Tensor:
    """The same for CUDA: to list the kept rows would make the host wait for the device."""
    mask = keep.unsqueeze(1)
    sent = torch.where(mask, total * scale, 0).to(out.dtype)
    if keep_rest:
        _subtract(total, sent)
    for cleared in velocity:
        cleared.masked_fill_(mask, 0)
    out.copy_(sent)
    return keep.count_nonzero() * total.shape[1]


def _split_elements(
    rule: ElementRule, call: Call, keep_rest: bool, total: Tensor, out: Tensor, *velocity: Tensor
) -> None:
    """out = the rule's part of total; with `keep_rest`, total loses it."""
    if isinstance(rule, ThresholdRule):
        _copy_above(rule.limit(total, call), total, out)
    elif math.isfinite(float(total.sum())):
        sent = rule.sent(total, call)
        out.copy_(sent if keep_rest else sent.mul_(rule.scale(call)))
    else:
        out.copy_(total)
    if keep_rest:
        _subtract(total, out)
    for cleared in velocity:
        cleared.masked_fill_(out != 0, 0)
    kept = out.count_nonzero()
    if rule.learns:
        rule.learn(float(kept), call)
    counters.add_kept(total.device, kept)


def _copy_above(limit: float, total: Tensor, out: Tensor) -> None:
    """As torch_ops.above, without an intermediate copy where possible."""
    if math.isfinite(limit) and total.dtype == out.dtype:
        torch.ops.aten.hardshrink.out(total, limit, out=out)
    else:
        out.copy_(torch_ops.above(total, limit))


def _subtract(total: Tensor, sent: Tensor) -> Tensor:
    """total -= sent. Where sent is not finite, 0 is left."""
    return total.sub_(sent).nan_to_num_(0.0, 0.0, 0.0)
