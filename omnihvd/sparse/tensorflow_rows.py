"""tf.IndexedSlices under `compression=OmniReduce` in horovod.tensorflow and Keras."""

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
    shape = tf.concat([tf.shape(union, tf.int64), tf.shape(merged, tf.int64)[1:]], 0)
    at = tf.searchsorted(union, rows, out_type=tf.int64)
    matrix = tf.scatter_nd(at[:, tf.newaxis], merged, shape)
    matrix = tf.ensure_shape(matrix, [None, *slices.values.shape[1:]])
    with tf.control_dependencies([_count(slices, rows, gathered, union)]):
        matrix = tf.identity(matrix)
    total = dense_allreduce(matrix, **options)
    return tf.IndexedSlices(total, union, slices.dense_shape)


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
    """Wraps hvd.allreduce and grouped_allreduce: all of Horovod's TensorFlow and Keras parts use
    these."""
    original, original_grouped = hvd.allreduce, hvd.grouped_allreduce

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

    hvd.allreduce = allreduce
    hvd.grouped_allreduce = grouped_allreduce
