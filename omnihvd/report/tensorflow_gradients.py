"""Samples TensorFlow's gradients as tf.GradientTape returns them, before anybody sums them.

In tf.function a small operation asks at each step whether to sample, and hands the gradients to
Python only then. Functions that XLA compiles cannot call Python and are not sampled.
"""

from __future__ import annotations

import functools
import sys
import time
from types import FrameType, ModuleType
from typing import Any, Callable

import numpy as np

from omnihvd.log import logger
from omnihvd.report.density import count, count_rows
from omnihvd.report.sampler import Sampler
from omnihvd.report.samples import Gradient


class Source:
    """guard(function) runs it, and ends the report at an exception instead of the training."""

    def __init__(
        self, tf: ModuleType, sampler: Sampler, guard: Callable[[Callable[[], None]], None]
    ) -> None:
        self._tf, self._sampler, self._guard = tf, sampler, guard
        self._clock: Any = None  # of the calls of gradient() the first one, and its variables
        self._names: dict[tuple[str, int], str] = {}
        self._closed = False
        self._original = original = tf.GradientTape.gradient

        @functools.wraps(original)
        def gradient(tape: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
            gradients = original(tape, target, sources, *args, **kwargs)
            caller = sys._getframe(1)
            self._guard(lambda: self._on_gradients(caller, sources, gradients))
            return gradients

        tf.GradientTape.gradient = gradient

    def close(self) -> None:
        self._closed = True
        self._tf.GradientTape.gradient = self._original

    def _on_gradients(self, caller: FrameType, sources: Any, gradients: Any) -> None:
        tf, sources = self._tf, self._tf.nest.flatten(sources)
        pairs = [
            (self._name(source), gradient)
            for source, gradient in zip(sources, _flat(tf, gradients))
            if gradient is not None and gradient.dtype.is_floating
        ]
        if self._closed:
            return
        if tf.executing_eagerly():
            self._step((caller.f_code, caller.f_lineno, *map(_id, sources)), pairs)
        elif _under_xla(caller):
            logger.warning("the report does not look into what XLA compiles (jit_compile=True)")
        else:
            self._in_graph(object(), pairs)

    def _in_graph(self, site: Any, pairs: list[tuple[str, Any]]) -> None:
        tf = self._tf
        named = [(name, self._parts(gradient)) for name, gradient in pairs]

        def wants() -> Any:
            self._guard(lambda: self._ended(site))
            return np.bool_(self._sampler.wants() is not None and not self._closed)

        def look(*tensors: Any) -> Any:
            def fill() -> None:
                left = iter(tensors)
                self._fill([(name, [next(left) for _ in parts]) for name, parts in named])

            self._guard(fill)
            return np.bool_(True)

        every = [part for _, parts in named for part in parts]
        wanted = tf.numpy_function(wants, [], tf.bool)
        wanted.set_shape([])
        tf.cond(
            wanted,
            lambda: tf.numpy_function(look, every, tf.bool),
            lambda: tf.constant(False),
        )

    def _step(self, site: Any, pairs: list[tuple[str, Any]]) -> None:
        self._ended(site)
        if self._sampler.wants() is not None:
            self._fill([(name, [part.numpy() for part in self._parts(g)]) for name, g in pairs])

    def _parts(self, gradient: Any) -> list[Any]:
        """A sparse one's values, its rows' numbers, and how many rows there are (0: unknown)."""
        if not isinstance(gradient, self._tf.IndexedSlices):
            return [gradient]
        shape = gradient.dense_shape
        rows = self._tf.cast(shape[0] if shape is not None else 0, self._tf.int64)
        return [gradient.values, gradient.indices, rows]

    def _ended(self, site: Any) -> None:
        """A step lasts from one time that its gradients are ready to the next."""
        self._clock = self._clock or site
        if site == self._clock:
            sample = self._sampler.wants()
            if sample and sample.gradients:
                sample.rest_s = max(self._sampler.seconds() - sample.backward_s, 0.0)
            self._sampler.step_ended()

    def _name(self, source: Any) -> str:
        """Its name, with a number behind it if another variable has the same."""
        name = getattr(source, "path", None) or getattr(source, "name", "a tensor")
        name = str(name).partition(":")[0]
        if (name, _id(source)) not in self._names:
            copies = sum(other == name for other, _ in self._names) + 1
            self._names[name, _id(source)] = f"{name}#{copies}" if copies > 1 else name
        return self._names[name, _id(source)]

    def _fill(self, found: list[tuple[str, Any]]) -> None:
        sample, job = self._sampler.wants(), self._sampler.job
        if sample is None:
            return
        begin = time.perf_counter()
        for name, parts in found:
            if len(parts) == 3:
                values, numbers, n_rows = parts
                n_rows = int(n_rows) or int(numbers.max(initial=0)) + 1
                width = int(np.prod(values.shape[1:]))
                counts = count_rows(n_rows, width, numbers, values)
                if name not in job.sparse:
                    job.sparse.append(name)
                job.shapes[name] = [n_rows, *values.shape[1:]]
            else:
                (values,) = parts
                values = np.ascontiguousarray(values)
                counts = count(values, values.shape[0] if values.ndim > 1 else 1)
                job.shapes[name] = list(values.shape)
            job.framework, job.widths[name] = "tensorflow", values.dtype.itemsize
            sample.gradients[name] = Gradient(counts, 0.0)
        self._sampler.spent_s += time.perf_counter() - begin


def _flat(tf: ModuleType, gradients: Any) -> list[Any]:
    """IndexedSlices are one, not their parts."""
    if gradients is None or isinstance(gradients, (tf.Tensor, tf.IndexedSlices)):
        return [gradients]
    return list(tf.nest.flatten(gradients, expand_composites=False))


def _id(source: Any) -> int:
    """Other than variables, tensors come anew in each step."""
    return id(source) if hasattr(source, "assign") else 0


def _under_xla(frame: Any) -> bool:
    while frame is not None:
        if getattr(frame.f_locals.get("self"), "_jit_compile", None):
            return True
        frame = frame.f_back
    return False
