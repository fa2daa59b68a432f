"""Keras: OmniReduce's figures in the epoch's logs, and a distributed optimizer for Keras 2 and 3.

    from omnihvd.keras import DistributedOptimizer, OmniReduceCallback
    model.compile(DistributedOptimizer(optimizer), loss)
    model.fit(..., callbacks=[OmniReduceCallback(), keras.callbacks.CSVLogger("log.csv")])

`tf.keras` is Keras 2 with TF_USE_LEGACY_KERAS=1 (the package tf-keras), which Horovod 0.28.1 was
made for, else Keras 3. This module imports TensorFlow, and Horovod's part for it.
"""

from __future__ import annotations

import math
import time
from typing import Any

import horovod.tensorflow as hvd
import tensorflow as tf

from omnihvd.carriers import in_use
from omnihvd.compression import OmniReduce
from omnihvd.frameworks.keras_optimizer import distribute, of_tensorflow
from omnihvd.log import warn_once_per_job
from omnihvd.observe import steps
from omnihvd.observe.progress_bar import shown
from omnihvd.statistics import (
    Statistics,
    delay_control,
    had_a_part,
    passed_bytes,
    taken_bytes,
)

LOGS = ("sent_of_ring", "density")
ALL_LOGS = (
    *LOGS,
    "gradient_bytes",
    "bytes_sent",
    "library_bytes",
    "ring_bytes",
    "passed_share",
    "reduce_share",
)


def is_keras_3() -> bool:
    return getattr(tf.keras, "__version__", "2").startswith("3")


class OmniReduceCallback(tf.keras.callbacks.Callback):
    """Says whether OmniReduce is in use, and adds what it does to the logs of each epoch:

    sent_of_ring    (bytes_sent + library_bytes) / ring_bytes; over shared memory alone 0
    density         share of the blocks of the tensors that omnihvd summed that were not zero; of
                    the last epoch in which it looked, as it does not in all

    With all_figures=True these, too:

    gradient_bytes  bytes of all tensors that were summed in the epoch, also of those that omnihvd
                    left to Horovod; of tf.IndexedSlices, of all their rows
    bytes_sent      bytes that omnihvd sent from a rank; over shared memory none
    library_bytes   bytes that the library beneath sent from a rank, for what omnihvd gave it
    ring_bytes      bytes that a ring allreduce would have sent from a rank for the same tensors
    passed_share    share of gradient_bytes that was left to Horovod: omnihvd.stats()["passed"]
                    says why, and the log at OMNIHVD_LOG=info
    reduce_share    share of the epoch's time in which a reduction was under way

    and with a compressor under delay control:

    compression_ratio      mean over the epoch's steps
    compression_bandwidth  bytes/s that its sums sent
    compression_delay      seconds that its sums took
    compression_exposed    seconds of sums after all gradients were there

    As those of omnihvd.stats(); shares are NaN where there was nothing to share. Means over all
    ranks, the same on each (as of Horovod's MetricAverageCallback; the order of the two does not
    matter). The values are numbers; the progress bar shows percents and megabytes. Callbacks that
    shall see these logs, such as CSVLogger and TensorBoard, come behind this one in the list.

    With OMNIHVD_STATS it also ends the step that is written there, at each batch.

    All ranks need it. At the start of training it warns, on rank 0, if on any rank Horovod's sums
    do not go through omnihvd, and after the first epoch if there were none, and tells why.
    """

    def __init__(self, all_figures: bool = False) -> None:
        super().__init__()
        self._all = all_figures

    def on_train_begin(self, logs: dict[str, float] | None = None) -> None:
        problems = hvd.allgather_object(in_use.horovod_problem())
        self._works = not any(problems)
        for rank, problem in enumerate(problems):
            if problem:
                warn_once_per_job(f"OmniReduce is not in use on rank {rank}: {problem}")
                break
        self._said, self._density = False, None

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        self._epoch, self._start = Statistics(), time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        steps.step_ended()

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        seconds = time.perf_counter() - self._start
        figures = self._epoch.read()
        if self._works and not self._said and not had_a_part(figures):
            warn_once_per_job(_why_nothing(figures["passed"]))
            self._said = True
        if figures["density"] is not None:
            self._density = figures["density"]
        logged = {
            **figures,
            "density": self._density,
            "gradient_bytes": taken_bytes(figures) + passed_bytes(figures),
            "reduce_share": min(1.0, figures["seconds"] / seconds),
        }
        values = {name: logged[name] for name in (ALL_LOGS if self._all else LOGS)}
        if self._all:
            values |= delay_control(figures)
        mine = [math.nan if value is None else value for value in values.values()]
        means = hvd.allreduce(tf.constant(mine, tf.float64), op=hvd.Average, name="omnihvd.logs")
        if logs is not None:
            logs.update(map(shown, values, means.numpy().tolist()))


def _why_nothing(passed: dict[str, Any]) -> str:
    small = passed.get("small", {"calls": 0})["calls"]
    if small:
        reason = f"the epoch's {small} sums are all smaller than OMNIHVD_MIN_BYTES"
    elif is_keras_3():
        reason = (
            "the epoch reduced no gradients; with Keras 3, use "
            "omnihvd.keras.DistributedOptimizer (Horovod's does nothing there), or set "
            "TF_USE_LEGACY_KERAS=1"
        )
    else:
        reason = "the epoch reduced no gradients: is the optimizer hvd.DistributedOptimizer?"
    return f"OmniReduce has nothing to do: {reason}"


class BroadcastCallback(tf.keras.callbacks.Callback):
    """All ranks go on from root_rank's weights and optimizer after the first batch.

    As Horovod's BroadcastGlobalVariablesCallback, which fails with Keras 3.
    """

    def __init__(self, root_rank: int = 0) -> None:
        super().__init__()
        self._root, self._done = root_rank, False

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        if self._done:
            return
        self._done = True
        optimizer = getattr(self.model, "optimizer", None)
        variables = [*self.model.variables, *(optimizer.variables if optimizer else ())]
        hvd.broadcast_variables(list(map(of_tensorflow, variables)), root_rank=self._root)


class MetricAverageCallback(tf.keras.callbacks.Callback):
    """Each epoch's logs are means over all ranks, the same on each.

    As Horovod's, which fails with Keras 3. It comes before callbacks that decide by the logs
    (EarlyStopping, ReduceLROnPlateau, ModelCheckpoint): ranks that decide by their own would stop
    at different epochs, and the others wait for ever.
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
    """The optimizer, with gradients reduced over all ranks before they are applied.

    It is the same object, so moments, iterations and schedule stay. Compile the model with it
    afterwards, also if it was compiled with it before.

    With Keras 2 Horovod's code reduces, and `options` are Horovod's. With Keras 3 Horovod's looks
    right and does nothing, so omnihvd's reduces; it knows process_set and sparse_as_dense. Other
    options raise TypeError.

    Keras 3 under the policy mixed_float16: model.compile() would put a LossScaleOptimizer around
    the optimizer, which skips a step on those ranks alone whose gradients overflowed. So this puts
    it there, and returns it: it reduces before it looks. An optimizer that another one calls raises
    RuntimeError instead of reducing.
    """
    if is_keras_3():
        return distribute(optimizer, compression=compression, op=op, **options)
    return _give_horovods_class(optimizer, compression=compression, op=op, **options)


def _give_horovods_class(optimizer: Any, **options: Any) -> Any:
    """Horovod's is a new optimizer, without the state of this one."""
    import horovod.tensorflow.keras as keras_hvd

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
    return optimizer


def load_model(
    filepath: Any, custom_objects: Any = None, compression: Any = OmniReduce, **options: Any
) -> Any:
    """What `keras.models.load_model` loads, with its optimizer as of DistributedOptimizer.

    A saved model names the optimizer's own class, so that it loads without omnihvd, too; loaded by
    Keras itself each rank would train alone. `options` are those of DistributedOptimizer.
    """
    model = tf.keras.models.load_model(filepath, custom_objects=custom_objects)
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None:
        raise ValueError(f"{filepath}: the model was saved without an optimizer; compile it")
    if is_keras_3():
        model.optimizer = DistributedOptimizer(optimizer, compression, **options)
    else:  # LossScaleOptimizer of Keras 2 asks the optimizer in it for the sums
        inner = getattr(optimizer, "inner_optimizer", optimizer)
        DistributedOptimizer(inner, compression, **options)
    return model
