"""Splits a gradient into the part that is sent and the residual that stays.

One code for arrays of PyTorch and of NumPy: `ops` is torch_ops or numpy_ops.

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

from omnihvd.compression import counters
from omnihvd.compression.compressor import Compressor, Config
from omnihvd.compression.delay import at
from omnihvd.compression.rules import BlockRule, Call, ElementRule, Rule, ThresholdRule, name_seed


@dataclass
class ParameterState:
    """One rank's state of one parameter. Residual and velocity have the parameter's shape."""

    name: str
    step: int = 0
    rest: Any = None
    velocity: Any = None
    memory: dict[str, Any] = field(default_factory=dict)  # the rule's own
    rule: Any = None  # that the memory is for

    def begin(self, ops: Any, gradient: Any, momentum: float) -> Any:
        """Allocates missing state; returns the residual."""
        if self.rest is None:
            self.rest = ops.zeros(gradient)
        if momentum and self.velocity is None:
            self.velocity = ops.zeros(gradient)
        return self.rest

    def accumulate(self, ops: Any, gradient: Any, momentum: float = 0.0) -> Any:
        """Adds `gradient` to the residual and returns it."""
        rest = self.begin(ops, gradient, momentum)
        if momentum:
            self.velocity *= momentum
            self.velocity += gradient
            gradient = self.velocity
        rest += gradient
        return rest

    def remember(self, ops: Any, rule: Rule, gradient: Any) -> dict[str, Any]:
        """The rule's own state, which begins with its memory()."""
        if self.rule is not rule:  # a checkpoint may have the memory of another
            self.rule = rule
            for kind, array in rule.memory(self.name, tuple(gradient.shape)).items():
                if getattr(self.memory.get(kind), "shape", None) != array.shape:
                    self.memory[kind] = ops.on(array, gradient)
        return self.memory

    def stepped(self) -> None:  # a function, for TensorFlow's graphs
        self.step += 1

    def save(self) -> dict[str, Any]:
        kept = {kind: getattr(self, kind) for kind in ("step", "rest", "velocity")}
        return {**kept, "memory": dict(self.memory)}

    def load(self, saved: dict[str, Any], shape: tuple[int, ...], copied: Any) -> None:
        """saved: from save(); missing entries have their first values. copied: copies an array."""
        for kind in ("rest", "velocity"):
            array = saved.get(kind)
            if array is not None and tuple(array.shape) != tuple(shape):
                raise ValueError(
                    f"compression state of {self.name} has shape {tuple(array.shape)}, "
                    f"the parameter {tuple(shape)}"
                )
            setattr(self, kind, None if array is None else copied(array))
        self.memory = {kind: copied(array) for kind, array in saved.get("memory", {}).items()}
        self.step, self.rule = saved.get("step", 0), None


def split_by(
    ops: Any, compressor: Compressor, gradient: Any, state: ParameterState, ranks: int = 1
) -> Any:
    """split() with the compressor's configuration, at the parameter's current step."""
    config, ratio = compressor.config, compressor.ratio(state.step)
    with ops.quiet():
        if config.clip is not None and not config.clip_together:
            gradient = ops.clipped(gradient, lambda norm: config.clipping(norm, ranks))
        if config.delay or config.floor is not None:
            config = dataclasses.replace(config, rule=at(config.rule, ratio))
        return split(ops, gradient, state, config, ratio, compressor.together)


def split(
    ops: Any,
    gradient: Any,
    state: ParameterState,
    config: Config,
    ratio: float,
    together: Any = None,
) -> Any:
    """Returns the part of `gradient` to send, dense, zero elsewhere; `state` keeps the residual.

    PyTorch: a contiguous gradient is overwritten with the result, as Horovod's allreduce would
    overwrite it. NumPy: the gradient stays as it is.
    """
    elements = math.prod(gradient.shape)
    parts, rule = elements, config.rule
    if isinstance(rule, BlockRule):
        parts = -(-elements // config.block_size)
    call = Call(ops, parts, ratio, name_seed(state.name), state.step, state.memory, together)
    with counters.timed(elements):
        if rule.selects and call.count == parts:  # nothing to choose, as for most biases
            counters.add_kept(ops.device(gradient), elements)
            out = _whole(ops, gradient, state, config)
        else:
            out = ops.by_kernels(gradient, state, config, call)
            if out is None:
                call.memory = state.remember(ops, rule, gradient)
                out = _by_operators(gradient, state, config, call)
    state.step += 1
    return out


def _whole(ops: Any, gradient: Any, state: ParameterState, config: Config) -> Any:
    """Sends all. The velocity stays: no part of it is late."""
    if not config.error_feedback or (state.rest is None and not config.momentum):
        return gradient  # then there is never a residual
    total, out = state.accumulate(ops, gradient, config.momentum), ops.result_for(gradient)
    out[...] = total
    ops.subtract(total, out)
    return out


def _by_operators(gradient: Any, state: ParameterState, config: Config, call: Call) -> Any:
    ops, rule, keep_rest = call.ops, config.rule, config.error_feedback
    out = ops.result_for(gradient)
    if keep_rest:
        total = state.accumulate(ops, gradient, config.momentum)
    else:
        total = ops.contiguous(gradient)
    arrays = [total, out] + ([state.velocity] if state.velocity is not None else [])
    flat = [array.reshape(-1) for array in arrays]
    if isinstance(rule, ElementRule):
        flat[0] = ops.wide(flat[0])
        _split_elements(rule, call, keep_rest, *flat)
        return out
    assert isinstance(rule, BlockRule)
    parts = [_rows(array, config.block_size) for array in flat]
    keep = rule.keep(ops.concatenate([ops.norms(rows) for rows in parts[0]]), call)
    scale = 1.0 if keep_rest else rule.scale(call)
    split_rows = ops.split_masked if ops.on_device(total) else _split_listed
    for rows in zip(*parts):
        kept = split_rows(ops, keep[: len(rows[0])], scale, keep_rest, *rows)
        counters.add_kept(ops.device(total), kept)
        keep = keep[len(rows[0]) :]
    return out


def _rows(flat: Any, block_size: int) -> list[Any]:
    """`flat` as blocks, one a row: the whole ones, then the short last one on its own."""
    whole = len(flat) // block_size * block_size
    rows = [flat[:whole].reshape(-1, block_size)] if whole else []
    return rows + ([flat[whole:].reshape(1, -1)] if whole < len(flat) else [])


def _split_listed(
    ops: Any, keep: Any, scale: float, keep_rest: bool, total: Any, out: Any, *velocity: Any
) -> int:
    """out = the rows of total in `keep`, times scale; with `keep_rest`, total loses them.

    Returns the number of elements in those rows. For the CPU: only the kept rows are read again.
    """
    chosen = ops.places(keep)
    kept = ops.take(total, chosen)
    sent = ops.cast(kept if scale == 1 else kept * scale, out)
    out[:] = 0
    ops.put(out, chosen, sent)
    if keep_rest:
        ops.put(total, chosen, ops.subtract(kept, sent))
    for cleared in velocity:
        ops.put(cleared, chosen, 0)
    return len(chosen) * int(total.shape[1])


def _split_elements(
    rule: ElementRule, call: Call, keep_rest: bool, total: Any, out: Any, *velocity: Any
) -> None:
    """out = the rule's part of total; with `keep_rest`, total loses it."""
    ops = call.ops
    limit = rule.limit(total, call) if isinstance(rule, ThresholdRule) else float(total.sum())
    finite = math.isfinite(limit)
    if not finite:
        out[:] = total
    elif isinstance(rule, ThresholdRule):
        ops.copy_above(total, limit, out)
    else:
        sent = rule.sent(total, call)
        out[:] = sent if keep_rest else sent * rule.scale(call)
    if keep_rest:
        ops.subtract(total, out)
    for cleared in velocity:
        cleared[out != 0] = 0
    kept = ops.count(out)
    if rule.learns and finite:
        rule.learn(float(kept), call)
    counters.add_kept(ops.device(total), kept)
