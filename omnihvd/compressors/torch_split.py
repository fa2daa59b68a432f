"""Splits a PyTorch gradient into the part that is sent and the rest that stays.

Error feedback (Stich et al., "Sparsified SGD with memory", NeurIPS 2018): what stays is added to
the next gradient, in the gradient's dtype or, for float16 and bfloat16, in float32.

    total = rest + gradient;  sent = part of total;  rest = total - sent, exactly

An element that is sent leaves 0 behind, or its rounding error where the gradient's dtype is
narrower than the rest's. Momentum correction (Lin et al., "Deep Gradient Compression", ICLR 2018,
3.1) adds a velocity in place of the gradient, which is cleared where it was sent (3.3).

A block with a NaN or an infinity is sent whatever the rule says: it must reach the optimizer (or
its loss scaler) at once, and must not stay in the rest.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from omnihvd.compressors import counters, torch_ops
from omnihvd.compressors.compressor import Compressor, Config
from omnihvd.compressors.delay import at
from omnihvd.compressors.rules import (
    Call,
    ElementRule,
    RandomBlocks,
    Rule,
    ThresholdBlocks,
    ThresholdRule,
    TopBlocks,
    kept_count,
    name_seed,
    random_turn,
)

_HALF = (torch.float16, torch.bfloat16)


@dataclass
class ParameterState:
    """What one rank remembers of one parameter. Rest and velocity have the parameter's shape."""

    name: str
    step: int = 0
    rest: Tensor | None = None
    velocity: Tensor | None = None
    memory: dict[str, Tensor] = field(default_factory=dict)  # the rule's own

    def accumulate(self, gradient: Tensor, momentum: float) -> Tensor:
        """Adds `gradient` to the rest and returns it."""
        if self.rest is None:
            self.rest = _zeros_like(gradient)
        if momentum:
            if self.velocity is None:
                self.velocity = _zeros_like(gradient)
            gradient = self.velocity.mul_(momentum).add_(gradient)
        return self.rest.add_(gradient)


def split_by(compressor: Compressor, gradient: Tensor, state: ParameterState) -> Tensor:
    """split() as the compressor is configured, in the parameter's present step."""
    config, ratio = compressor.config, compressor.ratio(state.step)
    if config.delay:
        config = dataclasses.replace(config, rule=at(config.rule, ratio))
    return split(gradient, state, config, ratio)


@torch.no_grad()
def split(gradient: Tensor, state: ParameterState, config: Config, ratio: float) -> Tensor:
    """Returns what to send of `gradient`, dense, zero elsewhere; `state` keeps the rest.

    A contiguous gradient is overwritten with the result, as Horovod's allreduce would overwrite it.
    """
    rule, keep_rest = config.rule, config.error_feedback
    if _sends_all(gradient, state, config, ratio):
        with counters.timed(gradient.numel()):
            counters.add_kept(gradient.device, gradient.numel())
        state.step += 1
        return gradient
    out = gradient if gradient.is_contiguous() else torch.empty_like(gradient).contiguous()
    with counters.timed(gradient.numel()):
        total = state.accumulate(gradient, config.momentum) if keep_rest else gradient.contiguous()
        tensors = [total, out] + ([state.velocity] if state.velocity is not None else [])
        flat = [tensor.view(-1) for tensor in tensors]
        if isinstance(rule, ElementRule):
            if total.dtype in _HALF:
                flat[0] = flat[0].float()
            _split_elements(rule, _call(rule, gradient, state, ratio), keep_rest, *flat)
        else:
            parts = [_rows(tensor, config.block_size) for tensor in flat]
            norms = torch.cat([_norms(rows) for rows in parts[0]])
            keep = _keep(rule, ratio, norms, state)
            scale = 1.0
            if isinstance(rule, RandomBlocks) and not keep_rest:  # right on average
                scale = len(norms) / kept_count(ratio, len(norms))
            split_rows = _split_masked if total.is_cuda else _split_listed
            for rows in zip(*parts):
                kept = split_rows(keep[: len(rows[0])], scale, keep_rest, *rows)
                counters.add_kept(total.device, kept)
                keep = keep[len(rows[0]) :]
    state.step += 1
    return out


def _sends_all(gradient: Tensor, state: ParameterState, config: Config, ratio: float) -> bool:
    """Whether there is nothing to choose, as for most biases: then there is never a rest."""
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
    if isinstance(rule, (TopBlocks, RandomBlocks)):
        count = kept_count(ratio, len(norms))
        if isinstance(rule, TopBlocks):
            chosen = torch.topk(norms, count, sorted=False).indices
        else:
            shuffle, start = random_turn(state.step, count, len(norms))
            random = np.random.default_rng([rule.seed, name_seed(state.name), shuffle])
            order = torch.from_numpy(random.permutation(len(norms)))
            chosen = order[start : start + count]
            if norms.is_cuda:  # from pinned memory, so that the host does not wait
                chosen = chosen.pin_memory().to(norms.device, non_blocking=True)
        return torch.isfinite(norms).logical_not_().index_fill_(0, chosen, True)
    assert isinstance(rule, ThresholdBlocks)
    return ~(norms < rule.threshold)  # so written, a NaN is kept


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
    """out = what the rule sends of total; with `keep_rest`, total loses it."""
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
    """As torch_ops.above, without a copy between where there need be none."""
    if math.isfinite(limit) and total.dtype == out.dtype:
        torch.ops.aten.hardshrink.out(total, limit, out=out)
    else:
        out.copy_(torch_ops.above(total, limit))


def _subtract(total: Tensor, sent: Tensor) -> Tensor:
    """total -= sent. Where sent is not finite, 0 is left."""
    return total.sub_(sent).nan_to_num_(0.0, 0.0, 0.0)
