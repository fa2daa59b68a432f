"""tf.IndexedSlices under `compression=OmniReduce`, and Keras 3's variables, in Horovod."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import tensorflow as tf

from omnihvd.log import warn_once_per_job
from omnihvd.sparse import gradients


def reduce_slices(
    slices: tf.IndexedSlices, hvd: Any, dense_allreduce: Any, **options: Any
) -> tf.IndexedSlices:
    """The sum or average over all ranks, with each row of the union once, in ascending order.

    slices: values (n, ...) and indices (n,); rows may repeat, and n may be 0. options: those of
    hvd.allreduce. Works eagerly and in tf.function.
    """
    process_set = options["process_set"]
    scope = {"ignore_name_scope": options.get("ignore_name_scope", False)}
    rows, which = tf.unique(slices.indices)
    merged = tf.math.unsorted_segment_sum(slices.values, which, tf.size(rows))
    gathered = hvd.allgather(rows, process_set=process_set, **scope)
    union = tf.sort(tf.unique(gathered)[0])
    ranks = hvd.size_op(process_set_id=process_set.process_set_id)

    def placed(rows: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
        at = tf.searchsorted(union, rows, out_type=tf.int64)
        total = tf.math.unsorted_segment_sum(values, at, tf.size(union))
        return tf.ensure_shape(total, [None, *slices.values.shape[1:]])

    def gather() -> tf.Tensor:
        with tf.control_dependencies([_count_gathered(merged)]):
            values = hvd.allgather(tf.identity(merged), process_set=process_set, **scope)
        total = placed(gathered, values)
        is_sum = options["op"] == hvd.Sum or options["average"] is False
        factor = options["prescale_factor"] * options["postscale_factor"]
        if is_sum and factor == 1.0:
            return total
        factor = factor / (1 if is_sum else tf.cast(ranks, tf.float64))
        exact = total.dtype if total.dtype.is_floating else tf.float64
        return tf.cast(tf.cast(total, exact) * tf.cast(factor, exact), total.dtype)

    def add() -> tf.Tensor:
        with tf.control_dependencies([_count(slices, rows, gathered, union)]):
            return dense_allreduce(tf.identity(placed(rows, merged)), **options)

    wide = [tf.cast(n, tf.int64) for n in (tf.size(union), tf.size(gathered), ranks)]
    way = tf.cond(gradients.few_shared(*wide), gather, add)
    return tf.IndexedSlices(way, union, slices.dense_shape)


def of_tensorflow(variable: Any) -> Any:
    """Keras 3's variables are none of TensorFlow's, but hold one."""
    return variable if hasattr(variable, "ref") else variable.value


def _count_gathered(merged: tf.Tensor) -> tf.Operation:
    item_bytes = merged.dtype.size

    def count(elements: Any) -> None:
        gradients.count_gathered(int(elements) * item_bytes)

    return tf.numpy_function(count, [tf.size(merged, tf.int64)], [])


def _count(slices: tf.IndexedSlices, rows: Any, gathered: Any, union: Any) -> tf.Operation:
    """Counts the rows; in a tf.function, each time that it runs."""
    number_bytes, item_bytes = slices.indices.dtype.size, slices.values.dtype.size
    shape = tf.shape(slices.values, tf.int64)
    every = tf.size(union, tf.int64)  # at least
    if slices.dense_shape is not None:
        every = tf.cast(slices.dense_shape[0], tf.int64)
    sizes = [tf.reduce_prod(shape[1:]), tf.size(rows), tf.size(gathered), tf.size(union), every]

    def count(sizes: Any) -> None:
        width, own, of_all, of_any, dense = (int(size) for size in sizes)
        gradients.count_rows(
            row_bytes=width * item_bytes,
            number_bytes=number_bytes,
            own=own,
            gathered=of_all,
            union=of_any,
            dense=dense,
        )

    return tf.numpy_function(count, [tf.stack([tf.cast(n, tf.int64) for n in sizes])], [])


def install(hvd: Any) -> None:
    """Wraps hvd.allreduce and grouped_allreduce, which all of Horovod's TensorFlow and Keras parts
    use, and the tape's gradient()."""
    original, original_grouped = hvd.allreduce, hvd.grouped_allreduce
    tape = hvd._DistributedGradientTape
    tape_gradient = tape.gradient

    signature = inspect.signature(original)

    @functools.wraps(original)
    def allreduce(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        tensor, options = given.args[0], {**given.arguments}
        if isinstance(tensor, tf.IndexedSlices) and gradients.takes(options["compression"]):
            if options["op"] in (None, hvd.Sum, hvd.Average):
                del options["tensor"]
                return reduce_slices(tensor, hvd, original, **options)
            warn_once_per_job(
                f"tf.IndexedSlices with op {options['op']} are left to Horovod's allgather: "
                "omnihvd sums those of hvd.Average and hvd.Sum"
            )
        return original(*args, **kwargs)

    @functools.wraps(original_grouped)
    def grouped_allreduce(tensors: Any, *args: Any, **options: Any) -> Any:
        rows = [i for i, tensor in enumerate(tensors) if isinstance(tensor, tf.IndexedSlices)]
        if not rows or args or not gradients.takes(options.get("compression")):
            return original_grouped(tensors, *args, **options)
        results = dict.fromkeys(range(len(tensors)))
        dense = [i for i in results if i not in rows]
        if dense:
            results.update(zip(dense, original_grouped([tensors[i] for i in dense], **options)))
        name = options.pop("name", None)
        for i in rows:
            results[i] = allreduce(tensors[i], name=f"{name}_{i}" if name else None, **options)
        return [results[i] for i in range(len(tensors))]

    @functools.wraps(tape_gradient)
    def gradient(tape: Any, target: Any, sources: Any, *args: Any, **options: Any) -> Any:
        if isinstance(sources, (list, tuple)):
            sources = [*map(of_tensorflow, sources)]
        return tape_gradient(tape, target, sources, *args, **options)

    hvd.allreduce, hvd.grouped_allreduce, tape.gradient = allreduce, grouped_allreduce, gradient
