"""PowerSGD in Horovod's TensorFlow optimizers and gradient tape: as in torch_low_rank.py."""

from __future__ import annotations

import re
from typing import Any

import tensorflow as tf

from omnihvd.compressors.methods.low_rank import LowRank


def reduce(rule: LowRank, gradients: list[Any], states: list[Any], ranks: Any) -> list[Any]:
    """The averages, or sums, of the gradients that have a state; the others unchanged.

    ranks: a tensorflow_ranks.Ranks.
    """
    totals: list[Any] = []
    lefts: list[Any] = []
    for gradient, state in zip(gradients, states):
        if state is None:
            totals.append(None)
            lefts.append(None)
            continue
        total = tf.cast(gradient, state.dtype)
        if state.rest is not None:
            total += state.rest
        matrix = rule.matrix(tuple(gradient.shape))
        assert matrix is not None
        total = tf.reshape(total, matrix)
        left = total @ tf.cast(state.memory["right"], total.dtype)
        totals.append(total)
        lefts.append(ranks.average(left, _sum_name(state, "left")))
    reduced = []
    for gradient, state, total, left in zip(gradients, states, totals, lefts):
        if state is None:
            reduced.append(gradient)
            continue
        finite = tf.math.is_finite(tf.reduce_sum(left))
        safe = tf.where(finite, left, tf.ones_like(left))
        left = tf.where(finite, tf.linalg.qr(safe).q, left)
        right = ranks.average(tf.matmul(total, left, transpose_a=True), _sum_name(state, "right"))
        result = tf.matmul(left, right, transpose_b=True)
        if state.rest is not None:
            rest = total - result
            rest = tf.where(tf.math.is_finite(rest), rest, tf.zeros_like(rest))
            state.rest.assign(tf.reshape(rest, state.rest.shape))
        before = state.memory["right"]
        right = tf.cast(right, before.dtype)
        state.memory["right"] = tf.where(tf.math.is_finite(tf.reduce_sum(right)), right, before)
        state.step.assign_add(1)
        result *= 1 if ranks.averages else ranks.size
        reduced.append(tf.cast(tf.reshape(result, gradient.shape), gradient.dtype))
    return reduced


def _sum_name(state: Any, side: str) -> str:
    return re.sub(r"[^\w.]", "_", f"power.{state.name}.{side}")
