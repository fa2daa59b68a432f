"""Sums in two exchanges (two_steps.py) in Horovod's TensorFlow optimizers and gradient tape."""

from __future__ import annotations

import re
from typing import Any, Callable

import tensorflow as tf

from omnihvd.compression import counters, numpy_ops
from omnihvd.compression.compressor import Compressor
from omnihvd.compression.tensorflow_ranks import on_host
from omnihvd.compression.two_steps import TwoSteps, begin


def start(compressor: Compressor, gradient: Any, state: Any, ranks: Any) -> Callable[[], Any]:
    """A function that returns the sum or average. ranks: a tensorflow_ranks.Ranks."""
    steps = begin(numpy_ops, compressor, state, ranks)
    received = _exchange(steps, 0, steps.first, gradient, state.name, ranks)

    def finish() -> Any:
        summed = _exchange(steps, 1, steps.second, received, state.name, ranks)
        return tf.reshape(on_host(steps.result, summed, gradient.dtype), gradient.shape)

    return finish


def _exchange(steps: TwoSteps, number: int, make: Any, given: Any, name: str, ranks: Any) -> Any:
    kind, of = steps.exchanges[number]
    name = re.sub(r"[^\w.]", "_", f"{name}.{of}")
    if kind == "average":
        half = given.dtype in (tf.float16, tf.bfloat16)
        made = on_host(make, given, tf.float32 if half else given.dtype)
        return ranks.reduce(made, name, averages=True)

    def counted(given: Any) -> Any:
        made = make(given)
        if kind == "allgather":
            counters.add_codes((ranks.size - 1) * len(made), None)  # as in a ring
        else:
            counters.add_codes(len(made[0]) - int(made[1][ranks.rank]), None)
        return made

    if kind == "allgather":
        return ranks.allgather(on_host(counted, given, tf.uint8), name)
    return ranks.alltoall(*on_host(counted, given, [tf.uint8, tf.int32]), name)
