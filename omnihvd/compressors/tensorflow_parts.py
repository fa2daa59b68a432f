"""Sums of codes (part_sums.py) in Horovod's TensorFlow optimizers and gradient tape."""

from __future__ import annotations

import functools
import re
from typing import Any

import numpy as np
import tensorflow as tf

from omnihvd.compressors import counters, part_sums
from omnihvd.compressors.rules import CodedRule


def reduce(rule: CodedRule, gradients: list[Any], states: list[Any], ranks: Any) -> list[Any]:
    """The sums or averages of those gradients that have a state, the others as they are.

    ranks: a tensorflow_ranks.Ranks.
    """
    received = [
        None if state is None else _start(rule, gradient, state, ranks)
        for gradient, state in zip(gradients, states)
    ]
    return [
        gradient if state is None else _finish(rule, gradient, state, ranks, codes)
        for gradient, state, codes in zip(gradients, states, received)
    ]


def _start(rule: CodedRule, gradient: Any, state: Any, ranks: Any) -> Any:
    total = tf.reshape(tf.cast(gradient, state.dtype), [-1])
    if state.rest is not None:
        total += tf.reshape(state.rest, [-1])
    kinds = sorted(set(state.memory.variables) - {"sum_rest"})

    def contribution(values: Any, *kept: Any) -> Any:
        memory = dict(zip(kinds, kept))
        values = rule.values(np.asarray(values, np.float32), memory)
        made = part_sums.contribution(rule, values, ranks.size)
        counters.add_codes(len(made.code) - int(made.splits[ranks.rank]), None)
        return [*made, *(memory[kind] for kind in kinds)]

    given = [total, *(state.memory[kind] for kind in kinds)]
    types = [tf.uint8, tf.int32, tf.float32, *(tensor.dtype for tensor in given[1:])]
    code, splits, sent, *kept = tf.numpy_function(contribution, given, types)
    for kind, array in zip(kinds, kept):
        state.memory[kind] = tf.ensure_shape(array, state.memory.variables[kind].shape)
    if state.rest is not None:
        rest = total - tf.cast(tf.ensure_shape(sent, total.shape), total.dtype)
        rest = tf.where(tf.math.is_finite(rest), rest, tf.zeros_like(rest))
        state.rest.assign(tf.reshape(rest, state.rest.shape))
    state.step.assign_add(1)
    return ranks.alltoall(code, splits, _name(state, "parts"))


def _finish(rule: CodedRule, gradient: Any, state: Any, ranks: Any, codes: Any) -> Any:
    count = int(gradient.shape.num_elements())
    part = part_sums.part_of(count, ranks.rank, ranks.size)
    size, keeps = part.stop - part.start, state.rest is not None
    if keeps and "sum_rest" not in state.memory.variables:
        state.memory["sum_rest"] = np.zeros(size, np.float32)

    def summed(codes: Any, *kept: Any) -> Any:
        rests = [np.array(array) for array in kept]  # those of TensorFlow cannot be written
        code = part_sums.summed(rule, codes, size, ranks.scale, rests[0] if rests else None)
        counters.add_codes((ranks.size - 1) * len(code), None)
        return [code, *rests]

    given = [codes, *([state.memory["sum_rest"]] if keeps else [])]
    code, *rests = tf.numpy_function(summed, given, [tf.uint8, *[tf.float32] * keeps])
    if keeps:
        state.memory["sum_rest"] = tf.ensure_shape(rests[0], [size])
    everyone = ranks.allgather(code, _name(state, "sum"))
    opened = functools.partial(_opened, rule, count, ranks.size)
    result = tf.numpy_function(opened, [everyone], tf.float32)
    return tf.cast(tf.reshape(result, gradient.shape), gradient.dtype)


def _opened(rule: CodedRule, count: int, ranks: int, codes: Any) -> Any:
    return part_sums.opened(rule, codes, count, ranks)


def _name(state: Any, what: str) -> str:
    return re.sub(r"[^\w.]", "_", f"parts.{state.name}.{what}")
