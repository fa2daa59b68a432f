"""The certificate (certificate.py) in Horovod's TensorFlow and Keras optimizers and tape."""

from __future__ import annotations

import math
from typing import Any, Callable

import numpy as np
import tensorflow as tf

from omnihvd.compression.certificate import ALONE, Blocks


def begin(compressor: Any, gradients: list[Any], vars: Any, ranks: Any) -> Callable[[Any], Any]:
    """Begins the sum of the step's blocks and of the vote. The function that it returns takes the
    reduced gradients, which it returns, and ends the step. ranks: a tensorflow_ranks.Ranks."""
    config, gauge = compressor.config, compressor.gauge
    if not config.certificate or ranks.size == 1:
        return lambda reduced: reduced
    sizes = tuple(math.prod(variable.shape) for variable in vars)
    blocks = gauge.models.setdefault(sizes, Blocks(gauge, sizes, config.block_size))
    own = tf.ensure_shape(_chosen(blocks, gradients), [blocks.length])
    name = f"omnihvd.certificate.{[*gauge.models].index(sizes)}"
    summed = ranks.reduce(own, name, ranks.averages, **ALONE)

    def end(reduced: Any) -> Any:
        def compare(*both: np.ndarray) -> None:
            blocks.compare(*both, 1 if ranks.averages else ranks.size)
            blocks.step += 1

        tf.numpy_function(compare, [summed, _chosen(blocks, reduced)], [])
        return reduced

    return end


def _chosen(blocks: Blocks, gradients: list[Any]) -> Any:
    """The step's blocks of dense gradients, and the vote."""
    dense = {
        number: tf.reshape(gradient, [-1])
        for number, gradient in enumerate(gradients)
        if isinstance(gradient, tf.Tensor) and gradient.dtype.is_floating
    }

    def chosen(*arrays: np.ndarray) -> np.ndarray:
        out = np.zeros(blocks.length, np.float32)
        for number, flat in zip(dense, arrays):
            blocks.put(out, number, flat)
        out[-1] = blocks.gauge.vote
        return out

    return tf.numpy_function(chosen, list(dense.values()), tf.float32)
