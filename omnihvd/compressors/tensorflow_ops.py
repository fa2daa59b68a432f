"""The operations of rules for elements, for TensorFlow, eagerly and in graphs; torch_ops.py has the
same functions. Tensors are flat, float32 or float64; numbers are float64 scalars."""

from __future__ import annotations

from typing import Any, Callable

import tensorflow as tf

abs, sign, select, relu = tf.abs, tf.sign, tf.where, tf.nn.relu
magnitude, floor, ceil = tf.abs, tf.floor, tf.math.ceil
log, exp, sqrt, lgamma = tf.math.log, tf.exp, tf.sqrt, tf.math.lgamma
both = tf.logical_and


def number(value: Any) -> tf.Tensor:
    return tf.cast(value, tf.float64)


def maximum(one: Any, other: Any) -> tf.Tensor:
    return tf.maximum(number(one), number(other))


def minimum(one: Any, other: Any) -> tf.Tensor:
    return tf.minimum(number(one), number(other))


def clip(x: Any, low: float, high: float) -> tf.Tensor:
    return minimum(maximum(x, low), high)


def where(condition: Any, yes: Any, no: Any) -> tf.Tensor:
    return tf.where(condition, number(yes), number(no))


def numbers(vector: tf.Tensor, count: int) -> list[tf.Tensor]:
    return tf.unstack(vector, count)


def pack(*values: Any) -> tf.Tensor:
    return tf.stack([number(value) for value in values])


def element(vector: tf.Tensor, index: tf.Tensor) -> tf.Tensor:
    return vector[tf.cast(index, tf.int32)]


def with_element(vector: tf.Tensor, index: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
    return tf.tensor_scatter_nd_update(vector, tf.cast(index, tf.int32)[None, None], [value])


def loop(condition: Callable, body: Callable, values: tuple) -> tuple:
    return tf.while_loop(condition, body, values)


def times(total: tf.Tensor, factor: Any) -> tf.Tensor:
    return total * tf.cast(factor, total.dtype)


def trunc(total: tf.Tensor) -> tf.Tensor:
    return tf.sign(total) * tf.floor(tf.abs(total))


def above(total: tf.Tensor, limit: Any) -> tf.Tensor:
    keep = ~(tf.abs(total) <= tf.cast(limit, total.dtype)) | ~tf.math.is_finite(limit)
    return tf.where(keep, total, tf.zeros_like(total))


def kth_largest(x: tf.Tensor, k: Any) -> tf.Tensor:
    largest = tf.math.top_k(x, tf.cast(k, tf.int32), sorted=False).values
    return number(tf.reduce_min(largest))


def count_rounds(rounds: tf.Tensor) -> None:
    """Not counted here: it is part of the graph."""


def count(condition: tf.Tensor) -> tf.Tensor:
    return number(tf.math.count_nonzero(condition))


def mean(x: tf.Tensor) -> tf.Tensor:
    return number(tf.reduce_mean(x))


def largest(x: tf.Tensor) -> tf.Tensor:
    return number(tf.reduce_max(x))


def sum(x: tf.Tensor) -> tf.Tensor:
    return number(tf.reduce_sum(x))


def exceedance(total: tf.Tensor, limit: Any) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    over = tf.nn.relu(tf.abs(total) - tf.cast(limit, total.dtype))
    sums = number(tf.reduce_sum(over)), number(tf.reduce_sum(over * over))
    return (number(tf.math.count_nonzero(over)), *sums)


def mean_log(total: tf.Tensor) -> tf.Tensor:
    logs = tf.where(total == 0, tf.zeros_like(total), tf.math.log(tf.abs(total)))
    nonzero = maximum(tf.math.count_nonzero(total), 1.0)
    return number(tf.reduce_sum(logs)) / nonzero


def random_indices(count: Any, elements: int, seed: int, call: Any) -> tf.Tensor:
    mixed = (seed * 1_000_003 + call.seed) % 2**63
    key = tf.stack([tf.constant(mixed, tf.int64), tf.cast(call.step, tf.int64)])
    shape = tf.cast(count, tf.int64)[None]
    return tf.random.stateless_uniform(shape, key, 0, elements, tf.int64, alg="philox")


def take(total: tf.Tensor, indices: tf.Tensor) -> tf.Tensor:
    return tf.gather(total, indices)


def only(total: tf.Tensor, indices: tf.Tensor) -> tf.Tensor:
    hits = tf.scatter_nd(indices[:, None], tf.ones_like(indices), total.shape)
    return tf.where(hits > 0, total, tf.zeros_like(total))


def quantiles(x: tf.Tensor, points: int) -> tf.Tensor:
    """`points` elements of it, from the least to the largest."""
    last = tf.cast(tf.shape(x)[0] - 1, tf.float64)
    steps = tf.cast(tf.range(points), tf.float64) / (points - 1)
    return tf.gather(tf.sort(x), tf.cast(steps * last, tf.int64))


def constant(values: Any, like: tf.Tensor) -> tf.Tensor:
    return tf.constant(values, like.dtype)


def bucket(x: tf.Tensor, edges: tf.Tensor) -> tf.Tensor:
    """For each element how many of the ascending edges are below it."""
    return tf.searchsorted(edges, x, side="left")


def bucket_means(x: tf.Tensor, buckets: tf.Tensor, count: int) -> tf.Tensor:
    return tf.math.unsorted_segment_mean(x, buckets, count)


def like(x: tf.Tensor, total: tf.Tensor) -> tf.Tensor:
    return tf.cast(x, total.dtype)


def finite(x: tf.Tensor) -> tf.Tensor:
    return tf.where(tf.math.is_finite(x), x, tf.zeros_like(x))
