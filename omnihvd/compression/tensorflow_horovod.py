"""Compression in Horovod's TensorFlow and Keras optimizers and gradient tape.

All of them reduce through one function, made by `horovod.tensorflow._make_allreduce_grads_fn` and
called with the gradients and their variables. install() wraps this maker, once per process: with a
compressor of ours, its function compresses each gradient, then reduces it without loss. The state
is in variables beside the model's, so it works eagerly and inside `tf.function`.

Gradients are compressed as NumPy arrays on the host (split.py): Horovod sums host memory there too.
"""

from __future__ import annotations

import copy
import functools
import inspect
import os
from typing import Any, Callable

import numpy as np
import tensorflow as tf

from omnihvd.compression import agreement, budget, checks, counters, numpy_ops, order
from omnihvd.compression import tensorflow_certificate as certificate
from omnihvd.compression.compressor import Compressor, Config
from omnihvd.compression.omni_reduce import OmniReduce
from omnihvd.compression.split import ParameterState, split_by
from omnihvd.compression.tensorflow_ranks import Ranks, on_host
from omnihvd.intercept.after_import import part


class Backend:
    def __init__(self, compressor: Compressor) -> None:
        self._compressor = compressor
        self._states: dict[Any, ParameterState] = {}  # by the variable's ref()
        self._shapes: dict[str, tuple[int, ...]] = {}  # by the state's name
        self._saved: dict[str, Any] = {}  # loaded before their variables were seen
        self._agreed: set[Any] = set()  # process sets

    def agree(self, process_set: Any) -> None:
        """Raises, on all ranks, if they do not compress alike; once."""
        from horovod.tensorflow import allgather

        eager = tf.compat.v1.executing_eagerly_outside_functions()
        if process_set in self._agreed or not eager or not agreement.wanted(process_set.size()):
            return
        with tf.init_scope():
            mine = np.frombuffer(agreement.encode(self._compressor), np.uint8)
            # Horovod reports this name if a rank does not come.
            name = "compression, the same on all ranks"
            everyone = allgather(tf.constant(mine[None]), name=name, process_set=process_set)
            agreement.check(theirs.tobytes() for theirs in everyone.numpy())
        self._agreed.add(process_set)

    def compress(self, gradient: Any, variable: tf.Variable, ranks: int = 1) -> Any:
        """Returns the part of `gradient` to send, dense, zero elsewhere."""
        is_dense = isinstance(gradient, tf.Tensor) and gradient.dtype.is_floating
        if not is_dense or variable.shape.num_elements() == 0:
            return gradient
        config, state = self._compressor.config, self._state(variable)
        if config.rule.replaces:
            tf.numpy_function(state.stepped, [], [])
            return config.rule.replacement(gradient, state.name)[0]
        if config.warm_up:
            self._compressor.ratio(0)  # it must know the epoch: an error here has its own type

        def sent(array: Any) -> Any:
            return split_by(numpy_ops, self._compressor, array, state, ranks).reshape(-1)

        return tf.reshape(on_host(sent, gradient, gradient.dtype), gradient.shape)

    def own_sums(self, gradient: Any, variable: tf.Variable) -> ParameterState | None:
        """The variable's state, if the rule's own module is to sum its gradient."""
        is_dense = isinstance(gradient, tf.Tensor) and gradient.dtype.is_floating
        takes = is_dense and self._compressor.config.summed.takes(tuple(variable.shape))
        return self._state(variable) if takes else None

    def state_dict(self) -> dict[str, Any]:
        return copy.deepcopy({state.name: state.save() for state in self._states.values()})

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """A variable without a gradient yet gets its state with its first gradient."""
        self._saved = dict(saved)
        for state in self._states.values():
            state.load(self._saved.pop(state.name, {}), self._shapes[state.name], np.array)

    def average_rest(self) -> None:
        raise NotImplementedError("average_rest() is for PyTorch: save state_dict() on every rank")

    def _state(self, variable: tf.Variable) -> ParameterState:
        if not tf.compat.v1.executing_eagerly_outside_functions():
            raise RuntimeError(
                "compression needs TensorFlow 2: it keeps state, which graph sessions of "
                "tf.compat.v1 would have to initialize"
            )
        state = self._states.get(variable.ref())
        if state is None:
            name, copies = variable.name, 1
            while name in self._shapes:  # TensorFlow 2 does not make names unique
                copies += 1
                name = f"{variable.name}#{copies}"
            self._shapes[name] = tuple(variable.shape)
            state = ParameterState(name)
            state.load(self._saved.pop(name, {}), self._shapes[name], np.array)
            self._states[variable.ref()] = state
        return state

    def received(self, gradient: Any, ranks: int) -> Any:
        """The gradient for the optimizer, from the reduced one."""
        if gradient is None or isinstance(gradient, tf.IndexedSlices):
            return gradient
        return self._compressor.config.rule.received(gradient, ranks)


def _clipped(config: Config, grads: list[Any], ranks: int) -> list[Any]:
    """Clips by the norm of all dense gradients; sparse ones are sent whole."""
    dense = [isinstance(g, tf.Tensor) and g.dtype.is_floating for g in grads]
    norm = tf.linalg.global_norm([tf.cast(g, tf.float32) for g, is_ in zip(grads, dense) if is_])
    factor = tf.minimum((config.clip or 0.0) / ranks**0.5 / (norm + 1e-30), 1.0)
    return [g * tf.cast(factor, g.dtype) if is_ else g for g, is_ in zip(grads, dense)]


def _timed(sent: list[Any], reduce: Callable[[], list[Any]]) -> list[Any]:
    """Counts the sums' time after the last gradient as exposed: nothing is left to overlap with."""
    with tf.control_dependencies(_tensors(sent)):
        begun = tf.timestamp()
    reduced = reduce()
    with tf.control_dependencies(_tensors(reduced)):
        count = lambda seconds: counters.add(exposed_seconds=seconds)  # noqa: E731
        counted = tf.numpy_function(count, [tf.timestamp() - begun], [])
    with tf.control_dependencies([counted]):
        return [
            None if g is None else tf.nest.map_structure(tf.identity, g, expand_composites=True)
            for g in reduced
        ]


def _tensors(gradients: list[Any]) -> list[tf.Tensor]:
    return [t for t in tf.nest.flatten(gradients, expand_composites=True) if t is not None]


def install(module: Any) -> None:
    """Makes horovod.tensorflow compress gradients before it reduces them."""
    make = module._make_allreduce_grads_fn

    @functools.wraps(make)
    def make_allreduce(*args: Any, **kwargs: Any) -> Any:
        given = inspect.signature(make).bind(*args, **kwargs)
        options = given.arguments
        compression, op, process_set = map(options.get, ("compression", "op", "process_set"))
        checks.called(compression)
        ops = (module.Average, module.Sum)
        compression = budget.controlled(compression, module.Compression.none, op, ops, True)
        if not isinstance(compression, Compressor):
            return make(*args, **kwargs)
        if os.environ.get("HOROVOD_ELASTIC") == "1":  # graphs outlive the number of ranks
            raise ValueError(
                "compressors and OMNIHVD_DELAY_BUDGET_MS are not for elastic jobs under "
                "TensorFlow: use OmniReduce or a codec"
            )
        if op not in (module.Average, module.Sum):
            raise ValueError("a compressor needs op=hvd.Average or op=hvd.Sum")
        order.refuse_hosts_first(compression.config.rule.factory, "TensorFlow has no such order")
        compression.config.summed.check_use(op == module.Average, options["groups"] is not None)
        # Gradients left to Horovod, sparse ones too, go as with OmniReduce itself.
        options["compression"] = OmniReduce
        reduce = make(*given.args, **given.kwargs)
        sums = _compressed(compression, process_set)
        if compression.config.sums:
            sums = _own_sums(compression, process_set, module, op)

        def allreduce_grads(grads: Any, vars: Any, use_generic_names: bool = False) -> Any:
            if process_set and not process_set.included():  # Horovod returns them as they are
                return reduce(grads, vars, use_generic_names)
            if options["sparse_as_dense"]:
                grads = [
                    tf.convert_to_tensor(g) if isinstance(g, tf.IndexedSlices) else g for g in grads
                ]
            compression._backend("tensorflow").agree(process_set)
            end = certificate.begin(compression, grads, vars, Ranks(module, process_set, op))
            return end(sums(grads, vars, lambda sent: reduce(sent, vars, use_generic_names)))

        return allreduce_grads

    module._make_allreduce_grads_fn = make_allreduce


def _compressed(compressor: Compressor, process_set: Any) -> Callable:
    backend = compressor._backend("tensorflow")

    def sums(grads: Any, vars: Any, reduce: Callable) -> Any:
        ranks = process_set.size()
        if compressor.config.clip_together:
            grads = _clipped(compressor.config, grads, ranks)
        sent = [backend.compress(gradient, var, ranks) for gradient, var in zip(grads, vars)]
        reduced = _timed(sent, lambda: reduce(sent)) if compressor.config.delay else reduce(sent)
        return [backend.received(gradient, process_set.size()) for gradient in reduced]

    return sums


def _own_sums(compressor: Compressor, process_set: Any, hvd: Any, op: Any) -> Callable:
    """Sums by the rule's module, and by Horovod where that module takes no part."""
    backend = compressor._backend("tensorflow")
    own: Any = part(f"omnihvd.compression.tensorflow_{compressor.config.sums}")
    ranks = Ranks(hvd, process_set, op)

    def sums(grads: Any, vars: Any, reduce: Callable) -> Any:
        counters.note_own_sum()
        states = [backend.own_sums(*pair) for pair in zip(grads, vars)]
        rest = reduce([g if state is None else None for g, state in zip(grads, states)])
        finish = [
            None if state is None else own.start(compressor, g, state, ranks)
            for g, state in zip(grads, states)
        ]
        # All first exchanges have begun before any second one.
        return [part if end is None else end() for part, end in zip(rest, finish)]

    return sums
