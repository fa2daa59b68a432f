"""Samples TensorFlow's gradients as tf.GradientTape returns them, before anybody sums them.

In tf.function a small operation asks at each step whether to sample, and hands the gradients to
Python only then. Functions that XLA compiles cannot call Python and are not sampled.
"""

from __future__ import annotations

import functools
import sys
import time
from types import ModuleType
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
        self._sites: list[int] = []  # calls of gradient(); the first one is the clock
        self._closed = False
        self._original = original = tf.GradientTape.gradient

        @functools.wraps(original)
        def gradient(tape: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
            gradients = original(tape, target, sources, *args, **kwargs)
            self._guard(lambda: self._on_gradients(sources, gradients))
            return gradients

        tf.GradientTape.gradient = gradient

    def close(self) -> None:
        self._closed = True
        self._tf.GradientTape.gradient = self._original

    def _on_gradients(self, sources: Any, gradients: Any) -> None:
        tf = self._tf
        pairs = [
            (_name(source), gradient)
            for source, gradient in zip(tf.nest.flatten(sources), _flat(tf, gradients))
            if gradient is not None and gradient.dtype.is_floating
        ]
        if self._closed:
            return
        frame = sys._getframe(2)
        if tf.executing_eagerly():
            self._step(hash(frame.f_code), pairs)
        elif _under_xla(frame):
            logger.warning("the report does not look into what XLA compiles (jit_compile=True)")
        else:
            self._in_graph(id(object()), pairs)

    def _in_graph(self, site: int, pairs: list[tuple[str, Any]]) -> None:
        tf = self._tf
        names = [name for name, _ in pairs]
        parts, forms = [], []  # tensors, and how they group
        for _, gradient in pairs:
            if isinstance(gradient, tf.IndexedSlices):
                rows = gradient.dense_shape
                rows = tf.cast(rows[0] if rows is not None else 0, tf.int64)
                parts += [gradient.values, gradient.indices, rows]
                forms.append(3)
            else:
                parts.append(gradient)
                forms.append(1)

        def wants() -> Any:
            self._guard(lambda: self._ended(site))
            return np.bool_(self._sampler.wants() is not None and not self._closed)

        def look(*tensors: Any) -> Any:
            def fill() -> None:
                left, found = list(tensors), []
                for name, form in zip(names, forms):
                    found.append((name, left[:form]))
                    del left[:form]
                self._fill(found)

            self._guard(fill)
            return np.bool_(True)

        wanted = tf.numpy_function(wants, [], tf.bool)
        wanted.set_shape([])
        tf.cond(
            wanted,
            lambda: tf.numpy_function(look, parts, tf.bool),
            lambda: tf.constant(False),
        )

    def _step(self, site: int, pairs: list[tuple[str, Any]]) -> None:
        self._ended(site)
        if self._sampler.wants() is None:
            return
        found = []
        for name, gradient in pairs:
            if isinstance(gradient, self._tf.IndexedSlices):
                rows = gradient.dense_shape
                n_rows = int(rows[0]) if rows is not None else 0
                found.append((name, [gradient.values.numpy(), gradient.indices.numpy(), n_rows]))
            else:
                found.append((name, [gradient.numpy()]))
        self._fill(found)

    def _ended(self, site: int) -> None:
        """A step lasts from one time that its gradients are ready to the next."""
        if site not in self._sites:
            self._sites.append(site)
        if site == self._sites[0]:
            sample = self._sampler.wants()
            if sample and sample.gradients:
                sample.rest_s = max(self._sampler.seconds() - sample.backward_s, 0.0)
            self._sampler.step_ended()

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


def _name(source: Any) -> str:
    name = getattr(source, "path", None) or getattr(source, "name", "a tensor")
    return str(name).partition(":")[0]


def _under_xla(frame: Any) -> bool:
    while frame is not None:
        if getattr(frame.f_locals.get("self"), "_jit_compile", None):
            return True
        frame = frame.f_back
    return False
