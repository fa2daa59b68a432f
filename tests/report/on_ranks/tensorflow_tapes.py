"""A loop of one's own, not in a graph, with two tapes in each step and variables of one name."""

from __future__ import annotations

import tensorflow as tf

first, second = tf.Variable(tf.ones([300])), tf.Variable(tf.ones([40, 8]))


def gradient(variable: tf.Variable) -> tf.Tensor:
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(variable * variable)
    return tape.gradient(loss, variable)


for _ in range(9):
    for variable in (first, second):
        variable.assign_sub(0.01 * gradient(variable))
print("trained")
