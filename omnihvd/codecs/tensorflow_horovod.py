"""Codecs in Horovod for TensorFlow and Keras.

All of Horovod's allreduces pass through two functions that horovod.tensorflow has of its mpi_ops.
They are wrapped, once per process: what a codec has made is summed, whatever the operation, as
int32 that nobody may scale, and scaled when it is opened. All of it is part of the graph.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

import numpy as np
import tensorflow as tf

from omnihvd.codecs.codec import ENVELOPE, Codec, Format, envelopes_of, not_taken, warn

_WRAPPED = "_omnihvd_codecs"  # marks Horovod's module


class Envelope:
    """A tensor on its way."""

    def __init__(self, codec: Codec, source: tf.Tensor) -> None:
        self.codec, self.shape, self.dtype = codec, source.shape, source.dtype
        self.elements = int(source.shape.num_elements())
        self.format = Format(codec, self.elements)
        self.scale: Any = None

    def made(self, source: tf.Tensor) -> tf.Tensor:
        """What travels; it refers to this, and must not be referred to, or both would stay."""
        made = tf.concat([self._header(False), self._padded(source)], 0)
        setattr(made, ENVELOPE, self)
        return made

    def _header(self, summed: bool) -> tf.Tensor:
        header = np.zeros(self.format.header_floats, np.int32)
        given = np.frombuffer(self.format.header(summed=summed), np.int32)
        header[: len(given)] = given
        return tf.constant(header)

    def _padded(self, source: tf.Tensor) -> tf.Tensor:
        flat = tf.reshape(tf.cast(source, tf.float32), [-1])
        missing = self.format.floats - self.elements
        tail = flat[self.elements // self.format.block * self.format.block :]
        if self.format.repeats and missing:
            more = tf.tile(tail, [-(-missing // int(tail.shape[0]))])[:missing]
        else:
            more = tf.zeros([missing])
        return tf.bitcast(tf.concat([flat, more], 0), tf.int32)

    def begin(self, op: Any, scale: float, process_set: Any, hvd: Any) -> None:
        """The sum is about to begin."""
        if op not in (hvd.Average, hvd.Sum):
            raise ValueError(f"the codec {self.codec.name} needs op=hvd.Average or op=hvd.Sum")
        self.scale = tf.constant(scale)
        if op == hvd.Average and int(os.environ.get("HOROVOD_ELASTIC", 0)):
            self.scale /= tf.cast(hvd.size_op(process_set.process_set_id), tf.float32)
        elif op == hvd.Average:
            self.scale /= process_set.size()

    def open(self, summed: tf.Tensor) -> tf.Tensor:
        known = len(self.format.header()) // 4
        right = tf.reduce_all(summed[:known] == self._header(True)[:known])
        with tf.control_dependencies([tf.debugging.Assert(right, [not_taken(self.codec)])]):
            begin = self.format.header_floats
            flat = tf.bitcast(summed[begin : begin + self.elements], tf.float32) * self.scale
        return tf.cast(tf.reshape(flat, self.shape), self.dtype)


def compress(codec: Codec, tensor: Any) -> tuple[Any, Envelope | None]:
    tensor = tf.convert_to_tensor(tensor)
    elements = tensor.shape.num_elements()
    if elements is None:
        warn("tensors whose shapes are not known when the graph is made travel without a codec")
    if not tensor.dtype.is_floating or not elements:
        return tensor, None
    envelope = Envelope(codec, tensor)
    return envelope.made(tensor), envelope


def wrap_horovod() -> None:
    hvd: Any = sys.modules.get("horovod.tensorflow")
    if hvd is None or hasattr(hvd, _WRAPPED):
        return

    def wrapped(sum_of: Any, grouped: bool) -> Any:
        @functools.wraps(sum_of)
        def call(given: Any, **options: Any) -> Any:
            envelopes = envelopes_of(given if grouped else [given])
            if envelopes:
                scale = options.pop("prescale_factor", 1.0) * options.pop("postscale_factor", 1.0)
                process_set = options.get("process_set", hvd.global_process_set)
                for envelope in envelopes:
                    envelope.begin(options.get("op", hvd.Sum), scale, process_set, hvd)
                options["op"] = hvd.Sum
            return sum_of(given, **options)

        return call

    hvd._allreduce = wrapped(hvd._allreduce, False)
    hvd._grouped_allreduce = wrapped(hvd._grouped_allreduce, True)
    setattr(hvd, _WRAPPED, True)
