"""Keras: OmniReduce's figures in the epoch's logs, and a distributed optimizer for Keras 2 and 3.

    from omnihvd.keras import DistributedOptimizer, OmniReduceCallback
    model.compile(DistributedOptimizer(optimizer), loss)
    model.fit(..., callbacks=[OmniReduceCallback(), keras.callbacks.CSVLogger("log.csv")])

`tf.keras` is Keras 2 (the package tf-keras) with TF_USE_LEGACY_KERAS=1, else Keras 3. Horovod
0.28.1 supports Keras 2 only. This module imports TensorFlow and horovod.tensorflow.
"""

from __future__ import annotations

import math
import time
from typing import Any

import horovod.tensorflow as hvd
import tensorflow as tf

from omnihvd import statistics
from omnihvd.compression import OmniReduce
from omnihvd.intercept import in_use
from omnihvd.log import warn_once_per_job
from omnihvd.observe import steps
from omnihvd.observe.progress_bar import shown
from omnihvd.sparse.tensorflow_rows import of_tensorflow

LOGS = ("sent_of_ring", "density")
ALL_LOGS = (
    *(*LOGS, "gradient_bytes", "bytes_sent", "library_bytes", "ring_bytes"),
    *("passed_share", "reduce_share"),
)


def is_keras_3() -> bool:
    return getattr(tf.keras, "__version__", "2").startswith("3")


class OmniReduceCallback(tf.keras.callbacks.Callback):
    """Reports whether OmniReduce is in use, and adds its figures to the logs of each epoch:

    sent_of_ring    (bytes_sent + library_bytes) / ring_bytes; 0 over shared memory alone
    density         share of non-zero blocks in the tensors that omnihvd summed. omnihvd does not
                    measure it in every epoch: this is the last measurement

    all_figures=True adds:

    gradient_bytes  bytes of all tensors that were summed in the epoch, fallbacks to Horovod
                    included; tf.IndexedSlices count with all their rows, or those gathered
    bytes_sent      bytes that omnihvd sent from a rank; none over shared memory
    library_bytes   bytes that the original library sent from a rank on omnihvd's behalf
    ring_bytes      bytes that a ring allreduce would have sent from a rank for the same tensors
    passed_share    share of gradient_bytes in fallbacks to Horovod: omnihvd.stats()["passed"] has
                    the reasons, and so has the log at OMNIHVD_LOG=info
    reduce_share    share of the epoch's time in which a reduction was under way

    A compressor with a certificate adds compression_cosine and compression_error, under delay
    control:

    compression_ratio      mean over the epoch's steps
    compression_bandwidth  bytes/s that its sums sent
    compression_delay      seconds that its sums took
    compression_exposed    seconds of sums after the last gradient was ready

    The figures are those of omnihvd.stats(), averaged over all ranks, so every rank has the same
    (as with Horovod's MetricAverageCallback; the order of the two does not matter). A share of
    nothing is NaN. The values are numbers; the progress bar shows them in percent and megabytes.
    Place callbacks that read these logs, such as CSVLogger and TensorBoard, after this one.

    With OMNIHVD_STATS, each batch also ends a step of that log.

    All ranks need the callback. At the start of training rank 0 warns if omnihvd does not intercept
    Horovod's sums on some rank. After the first epoch it warns if there were no sums, and says why.
    """

    def __init__(self, all_figures: bool = False) -> None:
        super().__init__()
        self._all = all_figures

    def on_train_begin(self, logs: dict[str, float] | None = None) -> None:
        problems = hvd.allgather_object(in_use.horovod_problem())
        for rank, problem in enumerate(problems):
            if problem:
                warn_once_per_job(f"OmniReduce is not in use on rank {rank}: {problem}")
                break
        self._done, self._density = any(problems), None
        self._passed: dict[str, Any] = {}

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        self._epoch, self._start = statistics.Statistics(), time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        steps.step_ended()
        if not self._done:  # at the epoch's end other callbacks may sum metrics
            figures = self._epoch.read()
            self._done, self._passed = statistics.had_a_part(figures), figures["passed"]

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        seconds = time.perf_counter() - self._start
        figures = self._epoch.read()
        if not self._done:
            warn_once_per_job(_why_nothing(self._passed))
            self._done = True
        if figures["density"] is not None:
            self._density = figures["density"]
        logged = {
            **figures,
            "density": self._density,
            "gradient_bytes": statistics.taken_bytes(figures) + statistics.passed_bytes(figures),
            "reduce_share": min(1.0, figures["seconds"] / seconds),
        }
        values = {name: logged[name] for name in (ALL_LOGS if self._all else LOGS)}
        if self._all:
            values |= statistics.compression_figures(figures)
        mine = [math.nan if value is None else value for value in values.values()]
        means = hvd.allreduce(tf.constant(mine, tf.float64), op=hvd.Average, name="omnihvd.logs")
        if logs is not None:
            logs.update(map(shown, values, means.numpy().tolist()))


def _why_nothing(passed: dict[str, Any]) -> str:
    rows, small = (passed.get(name, {"calls": 0})["calls"] for name in ("rows", "small"))
    if hvd.size() == 1:
        reason = "the job has one rank"
    elif rows:
        reason = "ranks share few rows, so Horovod gathers them, merged"
    elif small:
        reason = f"the epoch's {small} sums are all smaller than OMNIHVD_MIN_BYTES"
    elif is_keras_3():
        reason = (
            "the epoch reduced no gradients; with Keras 3, use "
            "omnihvd.keras.DistributedOptimizer (Horovod's does nothing there), or set "
            "TF_USE_LEGACY_KERAS=1"
        )
    else:
        reason = (
            "the epoch reduced no gradients: is the optimizer hvd.DistributedOptimizer? A "
            "train_step() that calls apply_gradients() needs hvd.DistributedGradientTape"
        )
    return f"OmniReduce has nothing to do: {reason}"


class BroadcastCallback(tf.keras.callbacks.Callback):
    """Broadcasts root_rank's weights and optimizer variables to all ranks after the first batch.

    Replaces Horovod's BroadcastGlobalVariablesCallback, which fails with Keras 3.
    """

    def __init__(self, root_rank: int = 0) -> None:
        super().__init__()
        self._root, self._done = root_rank, False

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        if self._done:
            return
        self._done = True
        optimizer = getattr(self.model, "optimizer", None)
        held = getattr(optimizer, "variables", ())  # of Keras 2's legacy optimizers a method
        variables = [*self.model.variables, *(held() if callable(held) else held)]
        hvd.broadcast_variables(list(map(of_tensorflow, variables)), root_rank=self._root)


class MetricAverageCallback(tf.keras.callbacks.Callback):
    """Replaces each epoch's logs by their means over all ranks.

    Replaces Horovod's callback, which fails with Keras 3. Place it before callbacks that decide by
    the logs (EarlyStopping, ReduceLROnPlateau, ModelCheckpoint). Ranks that decide by their own
    logs may stop at different epochs, and the others then wait for ever.
    """

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        if not logs:
            return
        names = sorted(logs)
        mine = tf.constant([float(logs[name]) for name in names], tf.float64)
        means = hvd.allreduce(mine, op=hvd.Average, name="omnihvd.metrics").numpy().tolist()
        for name, mean in zip(names, means):
            kind = type(logs[name])
            logs[name] = kind(mean) if issubclass(kind, float) else mean


def DistributedOptimizer(
    optimizer: Any, compression: Any = OmniReduce, op: Any = hvd.Average, **options: Any
) -> Any:
    """Makes the optimizer reduce gradients over all ranks before it applies them, and returns it.

    It is the same object, so moments, iterations and schedule stay. Compile the model with it
    afterwards, even if the model was compiled with it before.

    Keras 2: Horovod's code reduces, and `options` are Horovod's. Keras 3: Horovod's optimizer
    reduces nothing, silently, so omnihvd's code reduces. It accepts the options process_set and
    sparse_as_dense; others raise TypeError. The optimizer's Keras counts, whatever tf.keras is.

    Keras 3 under the policy mixed_float16: model.compile() would wrap the optimizer in a
    LossScaleOptimizer that skips a step only on the ranks with overflowed gradients. This function
    therefore wraps it in one that reduces before it checks for overflow, and returns that. An
    optimizer that another optimizer calls raises RuntimeError instead of reducing.
    """
    if hasattr(type(optimizer), "apply"):
        from omnihvd.intercept.keras_optimizer import distribute  # imports Keras 3

        return distribute(optimizer, compression=compression, op=op, **options)
    return _give_horovods_class(optimizer, compression=compression, op=op, **options)


def _give_horovods_class(optimizer: Any, **options: Any) -> Any:
    """Horovod makes a new optimizer without this one's state: copy its class and attributes.
    LossScaleOptimizer of Keras 2 asks the optimizer in it for the sums."""
    import horovod.tensorflow.keras as keras_hvd

    outer, optimizer = optimizer, getattr(optimizer, "inner_optimizer", optimizer)
    for name in vars(type(optimizer)).get("_given", ()):
        del vars(optimizer)[name]
    if "_given" in vars(type(optimizer)):  # by a call before
        optimizer.__class__ = type(optimizer).__base__
    made = keras_hvd.DistributedOptimizer(optimizer, **options)
    given = {name: v for name, v in vars(made).items() if name not in vars(optimizer)}
    vars(optimizer).update(given)
    made_class: Any = type(made)
    made_class._given = tuple(given)
    made_class.__module__ = type(optimizer).__module__  # in Horovod's Keras does not find it
    optimizer.__class__ = made_class
    return outer


def load_model(
    filepath: Any, custom_objects: Any = None, compression: Any = OmniReduce, **options: Any
) -> Any:
    """`keras.models.load_model`, with DistributedOptimizer applied to the model's optimizer.

    A saved model names the optimizer's own class, so it also loads without omnihvd. But if Keras
    alone loads it, each rank trains on its own. `options` are those of DistributedOptimizer.
    ValueError if the model was saved without an optimizer.
    """
    model = tf.keras.models.load_model(filepath, custom_objects=custom_objects)
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None:
        raise ValueError(f"{filepath}: the model was saved without an optimizer; compile it")
    model.optimizer = DistributedOptimizer(optimizer, compression, **options)
    return model
