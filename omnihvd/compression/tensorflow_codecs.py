"""Codecs in Horovod for TensorFlow and Keras.

All allreduces of horovod.tensorflow pass through two functions that it imports from its mpi_ops.
install() wraps them, once per process. A tensor that a codec made is summed as int32 without any
scale, whatever the operation, and scaled when it is opened. All of it is part of the graph.
"""

from __future__ import annotations

import functools
import os
from typing import Any

import numpy as np
import tensorflow as tf

from omnihvd.compression.codec import ENVELOPE, Codec, Format, Whole, envelopes_of, not_taken
from omnihvd.log import warn_once


class Envelope:
    """The context of one tensor from compress() to decompress()."""

    def __init__(self, codec: Codec, source: tf.Tensor) -> None:
        self.codec, self.source = codec, source
        self.shape, self.dtype = source.shape, source.dtype
        self.elements = int(source.shape.num_elements())
        self.format = Format(codec, self.elements)
        self.scale: Any = None

    def made(self, source: tf.Tensor) -> tf.Tensor:
        """The tensor to send. It refers to this; a reference back would keep both alive."""
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

    def begin(self, scale: Any, reduce: Any = None) -> None:
        """Before the sum: open() will multiply its result by `scale`. reduce: of gradients."""
        self.scale, self.reduce = scale, reduce

    def open(self, summed: tf.Tensor) -> tf.Tensor:
        known = len(self.format.header()) // 4
        right = tf.reduce_all(summed[:known] == self._header(True)[:known])
        with tf.control_dependencies([tf.debugging.Assert(right, [not_taken(self.codec)])]):
            begin = self.format.header_floats
            flat = tf.bitcast(summed[begin : begin + self.elements], tf.float32) * self.scale
        result = tf.cast(tf.reshape(flat, self.shape), self.dtype)

        @tf.custom_gradient
        def passed(_: Any) -> Any:  # gradients are reduced as the tensor was, as by Horovod
            return tf.identity(result), self.reduce

        return passed(self.source)


def compress(codec: Codec, tensor: Any) -> tuple[Any, Envelope | Whole]:
    tensor = tf.convert_to_tensor(tensor)
    elements = tensor.shape.num_elements()
    if elements is None:
        warn_once(
            f"the shape {tensor.shape} of {tensor.name} is not known when the graph is made: it "
            "travels without a codec"
        )
    if not tensor.dtype.is_floating or not elements:
        whole = Whole(codec)
        return whole.mark(tf.identity(tensor)), whole
    envelope = Envelope(codec, tensor)
    return envelope.made(tensor), envelope


def install(hvd: Any) -> None:
    """Wraps two functions that horovod.tensorflow imports from its mpi_ops."""

    def size_of(process_set: Any) -> Any:
        if int(os.environ.get("HOROVOD_ELASTIC", 0)):
            return tf.cast(hvd.size_op(process_set.process_set_id), tf.float32)
        return process_set.size()

    def begun(envelopes: list[Any], options: dict[str, Any]) -> dict[str, Any]:
        """The options for the sum of encoded tensors."""
        others = {**options, "op": hvd.Sum, "prescale_factor": 1.0, "postscale_factor": 1.0}
        among = options.get("process_set", hvd.global_process_set)
        size = functools.partial(size_of, among)
        scale = tf.convert_to_tensor(
            envelopes[0].codec.share(options.get("op", hvd.Sum), hvd, size)
        )
        for name in ("prescale_factor", "postscale_factor"):
            scale *= options.get(name, 1.0)
        how = {name: value for name, value in options.items() if name != "name"}
        reduce = functools.partial(single, **how)
        for envelope in envelopes:
            envelope.begin(scale, reduce)
        return others

    single, several = hvd._allreduce, hvd._grouped_allreduce

    @functools.wraps(single)
    def allreduce(given: Any, **options: Any) -> Any:
        envelopes = envelopes_of([given])
        return single(given, **(begun(envelopes, options) if envelopes else options))

    @functools.wraps(several)
    def grouped(given: Any, **options: Any) -> Any:
        envelopes = envelopes_of(given)
        if not envelopes:
            return several(given, **options)
        made = [i for i, envelope in enumerate(envelopes) if not isinstance(envelope, Whole)]
        whole = [i for i in range(len(given)) if i not in made]
        how = begun([envelopes[i] for i in made], options)
        totals = dict(zip(made, several([given[i] for i in made], **how)))
        if whole:  # of another type: a group of its own
            if options.get("name"):
                options["name"] += "_whole"
            totals.update(zip(whole, several([given[i] for i in whole], **options)))
        return [totals[i] for i in range(len(given))]

    hvd._allreduce, hvd._grouped_allreduce = allreduce, grouped
