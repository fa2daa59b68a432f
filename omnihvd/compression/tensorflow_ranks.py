"""Nodes of TensorFlow's graph for compression: calls of the host, and collectives of the ranks."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np
import tensorflow as tf

from omnihvd.compression import numpy_ops


def on_host(function: Callable[[Any], Any], given: Any, dtypes: Any) -> Any:
    """function(given), with a NumPy array for a tensor; a tensor, or as many as `dtypes`."""
    shape = tuple(given.shape) if given.shape.is_fully_defined() else None

    def called(flat: Any) -> Any:
        with numpy_ops.quiet():
            made = function(flat if shape is None else flat.reshape(shape))
        return made if isinstance(dtypes, list) else np.asarray(made, dtypes.as_numpy_dtype)

    # TensorFlow makes no arrays of single bfloat16.
    flat = given if shape is None else tf.reshape(given, [-1])
    return tf.numpy_function(called, [flat], dtypes)


class Ranks:
    """The ranks of a process set and their collectives. Tensors have names."""

    def __init__(self, hvd: Any, process_set: Any, op: Any) -> None:
        self._hvd, self._set = hvd, process_set
        self.averages = op == hvd.Average

    @property
    def size(self) -> int:
        return int(self._set.size())

    @property
    def rank(self) -> int:
        return int(self._set.rank())

    def reduce(self, tensor: Any, name: str, averages: bool, **how: Any) -> Any:
        op = self._hvd.Average if averages else self._hvd.Sum
        return self._hvd.allreduce(tensor, op=op, name=name, process_set=self._set, **how)

    def alltoall(self, tensor: Any, splits: Any, name: str) -> Any:
        return self._hvd.alltoall(tensor, splits=splits, name=name, process_set=self._set)[0]

    def allgather(self, tensor: Any, name: str) -> Any:
        return self._hvd.allgather(tensor, name=name, process_set=self._set)
