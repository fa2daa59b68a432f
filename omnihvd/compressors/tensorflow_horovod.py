"""Compression in Horovod's TensorFlow and Keras optimizers and gradient tape.

All of them reduce through one function, made by `horovod.tensorflow._make_allreduce_grads_fn` and
called with the gradients and their variables. install() wraps this maker, once per process: with a
compressor of ours, its function compresses each gradient, then reduces it without loss. The state
is in variables beside the model's, so it works eagerly and inside `tf.function`.

The arithmetic is torch_split.py's, but part of the graph and not in place.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any, Callable

import numpy as np
import tensorflow as tf

from omnihvd.compression import OmniReduce
from omnihvd.compressors import agreement, budget, checks, counters, order, tensorflow_ops
from omnihvd.compressors.compressor import Compressor, Config
from omnihvd.compressors.delay import at
from omnihvd.compressors.rules import (
    Call,
    ElementRule,
    RandomBlocks,
    ThresholdBlocks,
    kept_count,
    name_seed,
)
from omnihvd.compressors.tensorflow_ranks import Ranks
from omnihvd.frameworks.after_import import part


class VariableState:
    """One rank's state of one variable, in variables made outside of any graph."""

    def __init__(self, name: str, variable: tf.Variable, config: Config) -> None:
        self.name, self._config, self._shape = name, config, variable.shape
        half = variable.dtype in (tf.float16, tf.bfloat16)
        self.dtype = tf.float32 if half else variable.dtype
        with tf.init_scope(), tf.device(variable.device):
            self.step = tf.Variable(0, dtype=tf.int64, trainable=False)
            zeros = tf.zeros(variable.shape, self.dtype)
            self.rest: Any = tf.Variable(zeros, trainable=False) if config.error_feedback else None
            self.velocity: Any = tf.Variable(zeros, trainable=False) if config.momentum else None
            first = config.rule.memory(name, tuple(variable.shape))
            self.memory = Memory(
                {kind: tf.Variable(array, trainable=False) for kind, array in first.items()}
            )

    def save(self) -> dict[str, Any]:
        tensors = {"rest": self.rest, "velocity": self.velocity}
        arrays = {kind: None if t is None else t.numpy() for kind, t in tensors.items()}
        memory = {kind: variable.numpy() for kind, variable in self.memory.variables.items()}
        return {"step": int(self.step.numpy()), **arrays, "memory": memory}

    def load(self, saved: dict[str, Any]) -> None:
        """saved: from save(). Missing entries become zero."""
        for kind in ("rest", "velocity"):
            variable, array = getattr(self, kind), saved.get(kind)
            if variable is None:
                continue
            if array is None:
                array = np.zeros(variable.shape)
            if array.shape != tuple(variable.shape):
                raise ValueError(
                    f"compression state of {self.name} has shape {array.shape}, "
                    f"the variable {tuple(variable.shape)}"
                )
            variable.assign(array)
        first = self._config.rule.memory(self.name, tuple(self._shape))
        for kind, array in {**first, **saved.get("memory", {})}.items():
            self.memory[kind] = array
        self.step.assign(saved.get("step", 0))


class Memory:
    """A rule's state, by name: reads variables, and assigns to them."""

    def __init__(self, variables: dict[str, tf.Variable]) -> None:
        self.variables = variables

    def __getitem__(self, name: str) -> tf.Tensor:
        return self.variables[name].read_value()

    def __setitem__(self, name: str, value: Any) -> None:
        if name not in self.variables:
            with tf.init_scope():
                self.variables[name] = tf.Variable(value, trainable=False)
        self.variables[name].assign(value)


class Backend:
    def __init__(self, compressor: Compressor) -> None:
        self._compressor = compressor
        self._states: dict[Any, VariableState] = {}  # by the variable's ref()
        self._names: set[str] = set()
        self._saved: dict[str, Any] = {}  # loaded before their variables were seen
        self._agreed: set[Any] = set()  # process sets
        with tf.init_scope():
            epoch = -1.0 if compressor.epoch is None else compressor.epoch
            self._epoch = tf.Variable(epoch, dtype=tf.float32, trainable=False)  # -1: never set

    def set_epoch(self, epoch: float) -> None:
        self._epoch.assign(epoch)

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
        if gradient is None or isinstance(gradient, tf.IndexedSlices):
            return gradient
        if not gradient.dtype.is_floating or variable.shape.num_elements() == 0:
            return gradient
        config, state = self._compressor.config, self._state(variable)
        if config.rule.replaces:
            state.step.assign_add(1)
            return config.rule.replacement(gradient, state.name)[0]
        total = tf.cast(gradient, state.dtype)
        if config.clip is not None and not config.clip_together:
            total *= _clipping(config, tf.norm(total), ranks, total.dtype)
        if config.momentum:
            velocity = config.momentum * state.velocity + total
            total = velocity
        if config.error_feedback:
            total += state.rest
        if isinstance(config.rule, ElementRule):
            sent, scale = self._elements(self._rule(state), total, state)
            mask = sent != 0
        else:
            mask, scale = self._mask(total, state)
            sent = tf.where(mask, total, tf.zeros_like(total))
        if not config.error_feedback:
            sent *= tf.cast(scale, sent.dtype)
        sent = tf.cast(sent, gradient.dtype)
        if config.error_feedback:
            rest = total - tf.cast(sent, state.dtype)
            state.rest.assign(tf.where(tf.math.is_finite(rest), rest, tf.zeros_like(rest)))
        if config.momentum:
            state.velocity.assign(tf.where(mask, tf.zeros_like(velocity), velocity))
        state.step.assign_add(1)
        return sent

    def own_sums(self, gradient: Any, variable: tf.Variable) -> VariableState | None:
        """The variable's state, if the rule's own module is to sum its gradient."""
        if gradient is None or isinstance(gradient, tf.IndexedSlices):
            return None
        rule = self._compressor.config.rule
        takes = gradient.dtype.is_floating and rule.takes(tuple(variable.shape))
        return self._state(variable) if takes else None

    def state_dict(self) -> dict[str, Any]:
        return {state.name: state.save() for state in self._states.values()}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """A variable without a gradient yet gets its state with its first gradient."""
        self._saved = dict(saved)
        for state in self._states.values():
            state.load(self._saved.pop(state.name, {}))

    def average_rest(self) -> None:
        raise NotImplementedError("average_rest() is for PyTorch: save state_dict() on every rank")

    def _state(self, variable: tf.Variable) -> VariableState:
        if not tf.compat.v1.executing_eagerly_outside_functions():
            raise RuntimeError(
                "compression needs TensorFlow 2: it keeps state, which graph sessions of "
                "tf.compat.v1 would have to initialize"
            )
        state = self._states.get(variable.ref())
        if state is None:
            name, copies = variable.name, 1
            while name in self._names:  # TensorFlow 2 does not make names unique
                copies += 1
                name = f"{variable.name}#{copies}"
            self._names.add(name)
            state = VariableState(name, variable, self._compressor.config)
            with tf.init_scope():
                state.load(self._saved.pop(name, {}))
            self._states[variable.ref()] = state
        return state

    def received(self, gradient: Any, ranks: int) -> Any:
        """The gradient for the optimizer, from the reduced one."""
        if gradient is None or isinstance(gradient, tf.IndexedSlices):
            return gradient
        return self._compressor.config.rule.received(tensorflow_ops, gradient, ranks)

    def _elements(
        self, rule: ElementRule, total: tf.Tensor, state: VariableState
    ) -> tuple[tf.Tensor, Any]:
        """The part to send, and the factor that makes it unbiased."""
        flat, step = tf.reshape(total, [-1]), state.step.read_value()
        elements, seed = int(total.shape.num_elements()), name_seed(state.name)
        ratio = self._ratio(state)
        if rule.selects and isinstance(ratio, float) and kept_count(ratio, elements) == elements:
            return total, 1.0
        ratio = tensorflow_ops.number(ratio)
        call = Call(tensorflow_ops, elements, ratio, seed, step, state.memory)
        finite = tf.math.is_finite(tf.reduce_sum(flat))
        sent = tf.where(finite, rule.sent(flat, call), flat)
        if rule.learns:
            rule.learn(tensorflow_ops.count(sent), call)
        scale = tf.where(finite, tensorflow_ops.number(rule.scale(call)), 1.0)
        return tf.reshape(sent, total.shape), scale

    def _mask(self, total: tf.Tensor, state: VariableState) -> tuple[tf.Tensor, Any]:
        """A mask of the elements to send, and the factor that makes them unbiased.

        NaN and infinities, and the whole blocks that have one, are always sent.
        """
        rule, size = self._rule(state), self._compressor.config.block_size
        elements = int(total.shape.num_elements())
        blocks = -(-elements // size)
        flat = tf.pad(tf.reshape(total, [-1]), [[0, blocks * size - elements]])
        rows = tf.reshape(flat, [blocks, size])
        norms = tf.sqrt(tf.reduce_sum(rows * rows, axis=1))
        scale: Any = 1.0
        if isinstance(rule, ThresholdBlocks):
            keep = ~(norms < tf.cast(rule.threshold, norms.dtype))
        else:
            count = self._count(blocks, state)
            if isinstance(rule, RandomBlocks):
                chosen = _drawn(rule, state, count, blocks)
                scale = blocks / count
            else:
                chosen = tf.math.top_k(norms, count, sorted=False).indices
            hits = tf.scatter_nd(chosen[:, None], tf.ones_like(chosen), [blocks])
            keep = (hits > 0) | ~tf.math.is_finite(norms)
        mask = tf.reshape(tf.broadcast_to(keep[:, None], [blocks, size]), [-1])[:elements]
        return tf.reshape(mask, total.shape), scale

    def _count(self, blocks: int, state: VariableState) -> Any:
        """How many blocks to keep: a number, or during warm-up a tensor."""
        ratio = self._ratio(state)
        if isinstance(ratio, float):
            return kept_count(ratio, blocks)
        return tf.clip_by_value(tf.cast(ratio * blocks + 0.5, tf.int32), 1, blocks)

    def _ratio_at(self, step: Any) -> np.float64:
        return np.float64(self._compressor.ratio(int(step)))

    def _rule(self, state: VariableState) -> Any:
        """The rule with this step's ratio."""
        config = self._compressor.config
        return at(config.rule, self._ratio(state)) if config.delay else config.rule

    def _ratio(self, state: VariableState) -> Any:
        """A number, or during warm-up a tensor."""
        if self._compressor.config.delay:
            step = state.step.read_value()
            ratio = tf.numpy_function(self._ratio_at, [step], tf.float64)
            return tf.ensure_shape(ratio, [])
        final, warm_up = self._compressor.ratio(0), self._compressor.config.warm_up
        if warm_up is None:
            return final
        epoch = self._epoch.read_value()
        if warm_up.steps_per_epoch is not None:
            counted = tf.cast(state.step, tf.float32) / warm_up.steps_per_epoch
            epoch = tf.where(epoch < 0, counted, epoch)
        progress = tf.clip_by_value(epoch / warm_up.epochs, 0.0, 1.0)
        final = getattr(self._compressor.config.rule, "ratio", 1.0)
        return warm_up.start * (final / warm_up.start) ** progress


def _clipping(config: Config, norm: Any, ranks: int, dtype: Any) -> Any:
    """The factor that clips gradients of this norm."""
    share = tf.constant((config.clip or 0.0) / ranks**0.5, norm.dtype) / (norm + 1e-30)
    return tf.cast(tf.minimum(share, 1.0), dtype)


def _clipped(config: Config, grads: list[Any], ranks: int) -> list[Any]:
    """Clips by the norm of all dense gradients; sparse ones are sent whole."""
    dense = [isinstance(g, tf.Tensor) and g.dtype.is_floating for g in grads]
    norm = tf.linalg.global_norm([tf.cast(g, tf.float32) for g, is_ in zip(grads, dense) if is_])
    return [
        g * _clipping(config, norm, ranks, g.dtype) if is_ else g for g, is_ in zip(grads, dense)
    ]


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


def _drawn(rule: RandomBlocks, state: VariableState, count: Any, blocks: int) -> tf.Tensor:
    """The blocks of this turn: see rules.random_turn."""
    step, count = state.step.read_value(), tf.cast(count, tf.int64)
    turns = (blocks + count - 1) // count
    start = tf.minimum(step % turns * count, blocks - count)
    seed = (rule.seed * 1_000_003 + name_seed(state.name)) % 2**63
    key = tf.stack([tf.constant(seed, tf.int64), step // turns])
    order = tf.argsort(tf.random.stateless_uniform([blocks], key, alg="philox"))
    return order[start : start + count]


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
        if op not in (module.Average, module.Sum):
            raise ValueError("a compressor needs op=hvd.Average or op=hvd.Sum")
        order.refuse_hosts_first(compression.config.rule.factory, "TensorFlow has no such order")
        compression.config.rule.check_use(averages=op == module.Average, grouped=False)
        if compression.config.codec:
            raise ValueError("with_codec() is for PyTorch: in TensorFlow use a method of its own")
        # Gradients left to Horovod, sparse ones too, go as with OmniReduce itself.
        options["compression"] = OmniReduce
        reduce = make(*given.args, **given.kwargs)
        sums = _compressed(compression, process_set)
        if compression.config.rule.sums:
            sums = _own_sums(compression, process_set, module, op)

        def allreduce_grads(grads: Any, vars: Any, use_generic_names: bool = False) -> Any:
            if options["sparse_as_dense"]:
                grads = [
                    tf.convert_to_tensor(g) if isinstance(g, tf.IndexedSlices) else g for g in grads
                ]
            compression._backend("tensorflow").agree(process_set)
            return sums(grads, vars, lambda sent: reduce(sent, vars, use_generic_names))

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
    backend, rule = compressor._backend("tensorflow"), compressor.config.rule
    own: Any = part(f"omnihvd.compressors.tensorflow_{rule.sums}")
    ranks = Ranks(hvd, process_set, op)

    def sums(grads: Any, vars: Any, reduce: Callable) -> Any:
        counters.note_own_sum()
        states = [backend.own_sums(*pair) for pair in zip(grads, vars)]
        rest = reduce([g if state is None else None for g, state in zip(grads, states)])
        grads = [part if state is None else g for g, part, state in zip(grads, rest, states)]
        reduced: list[Any] = own.reduce(rule, grads, states, ranks)
        return reduced

    return sums
