"""GRACE's communicators in Horovod's TensorFlow optimizers and gradient tape: torch_grace.py."""

from __future__ import annotations

import re
from typing import Any, Callable

import tensorflow as tf

from omnihvd.compression.compressor import Compressor
from omnihvd.compression.methods.grace import GraceObjects


def start(compressor: Compressor, gradient: Any, state: Any, ranks: Any) -> Callable[[], Any]:
    """A function that returns the reduced gradient. ranks: a tensorflow_ranks.Ranks."""
    rule: Any = compressor.config.rule
    tensors, ctx, _ = rule.compressed(gradient, state.name)
    name = re.sub(r"[^\w.]", "_", f"grace.{state.name}")
    send = _allreduce if rule.communicator == "allreduce" else _allgather
    result = send(rule, tensors, ctx, ranks, name)
    tf.numpy_function(state.stepped, [], [])
    reduced = tf.cast(tf.reshape(result, gradient.shape), gradient.dtype)
    return lambda: reduced


def _allreduce(rule: GraceObjects, tensors: list[Any], ctx: Any, ranks: Any, name: str) -> Any:
    summed = [ranks.reduce(x, f"{name}.{i}", rule.averages) for i, x in enumerate(tensors)]
    return rule.compressor.decompress(summed, ctx)


def _allgather(rule: GraceObjects, tensors: list[Any], ctx: Any, ranks: Any, name: str) -> Any:
    sizes = ranks.allgather(
        tf.stack([tf.size(tensor) for tensor in tensors])[None], f"{name}.sizes"
    )
    parts = []
    for i, tensor in enumerate(tensors):
        everyone = ranks.allgather(tf.reshape(tensor, [-1]), f"{name}.{i}")
        split = tf.split(everyone, sizes[:, i], num=ranks.size)
        # The first dimension is that rank's.
        shape = tf.concat([[-1], tf.shape(tensor)[1:]], 0) if tensor.shape.rank else []
        parts.append([tf.reshape(part, shape) for part in split])
    return rule.combined([list(own) for own in zip(*parts)], ctx)
