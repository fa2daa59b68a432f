"""On each rank: model.fit with OmniReduceCallback, Keras 2 or 3, equal to one process's.

argv: a folder, and a case of WARNINGS if the callback is to say something.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Any

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

from omnihvd.keras import (
    ALL_LOGS,
    LOGS,
    DistributedOptimizer,
    MetricAverageCallback,
    OmniReduceCallback,
    is_keras_3,
)

WORDS, WIDTH, EXAMPLES, BATCH, EPOCHS = 2000, 32, 48, 16, 2


def model() -> Any:
    """A table and a dense layer, float32. A batch touches a few rows."""
    tf.keras.utils.set_random_seed(1)
    layers = tf.keras.layers
    words = layers.Input((4,), dtype="int32")
    rows = layers.Embedding(WORDS, WIDTH)(words)
    return tf.keras.Model(words, layers.Dense(1)(layers.Flatten()(rows)))


def data(rank: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(rank)
    return rng.integers(0, 60, (EXAMPLES, 4)).astype(np.int32), rng.random(EXAMPLES, np.float32)


def sgd() -> Any:
    return tf.keras.optimizers.SGD(0.5)


def alone() -> list[np.ndarray]:
    """The weights of one process that has all ranks' batches."""
    parts = [data(rank) for rank in range(hvd.size())]
    inputs, targets = (
        np.concatenate([p[i].reshape(EXAMPLES // BATCH, BATCH, -1) for p in parts], axis=1)
        for i in (0, 1)
    )
    one = model()
    one.compile(sgd(), "mse")
    one.fit(
        inputs.reshape(-1, 4),
        targets.reshape(-1),
        batch_size=BATCH * hvd.size(),
        epochs=EPOCHS,
        shuffle=False,
        verbose=0,
    )
    return list(one.get_weights())


def check(options: dict[str, Any], log: Path) -> None:
    together = model()
    together.compile(DistributedOptimizer(sgd(), **options), "mse")
    inputs, targets = data(hvd.rank())
    history = together.fit(
        inputs,
        targets,
        batch_size=BATCH,
        epochs=EPOCHS,
        shuffle=False,
        verbose=2 if hvd.rank() == 0 else 0,
        callbacks=[OmniReduceCallback(all_figures=True), tf.keras.callbacks.CSVLogger(str(log))],
    ).history
    for ours, expected in zip(together.get_weights(), alone()):
        np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-6)

    logs = {name: history[name] for name in ALL_LOGS}
    assert all(len(values) == EPOCHS for values in logs.values())
    assert all(others == logs for others in hvd.allgather_object(logs)), "ranks' logs differ"
    with log.open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["gradient_bytes"]) for row in rows] == logs["gradient_bytes"]
    steps = EXAMPLES // BATCH
    table = WORDS * WIDTH * 4
    rest = (4 * WIDTH + 1) * 4  # the dense layer, left to Horovod
    size = hvd.size()
    for sent_of_ring, density, bytes_in, own, library, ring, passed, share in zip(*logs.values()):
        sent = own + library
        assert 0 < share <= 1
        # Whether the table's gradient is a dense or a sparse tensor, most of it is zero.
        assert steps * (table + rest) <= bytes_in < steps * (table + rest) + 1000
        assert 0 < density < 0.3 and 0 < sent < bytes_in / 2
        assert abs(ring - 2 * (size - 1) / size * steps * table) < 0.01 * ring
        assert abs(sent_of_ring - sent / ring) < 1e-6
        assert 0 <= passed < 0.02


def check_epoch_without_a_look() -> None:
    callback = OmniReduceCallback()
    callback.on_train_begin()
    for density in (0.25, None):
        callback.on_epoch_begin(0)
        figures = {**callback._epoch.read(), "density": density, "calls": 1}
        callback._epoch.read = lambda figures=figures: figures
        logs: dict[str, float] = {}
        callback.on_train_batch_end(0)
        callback.on_epoch_end(0, logs)
        assert logs["density"] == 0.25 and tuple(logs) == LOGS


class OwnStep(tf.keras.Model):
    def train_step(self, given: Any) -> dict[str, Any]:
        inputs, targets = given
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(inputs)[:, 0] - targets) ** 2)
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return {"loss": loss}


def own_step() -> Any:
    whole = model()
    return OwnStep(whole.inputs, whole.outputs[0])


def rows_alone() -> Any:
    words = tf.keras.layers.Input((4,), dtype="int32")
    rows = tf.keras.layers.Embedding(WORDS, WIDTH)(words)
    return tf.keras.Model(words, tf.keras.layers.Flatten()(rows))


WARNINGS = {"plain": model, "one_rank": model, "own_step": own_step, "rows": rows_alone}


def check_warnings(case: str) -> None:
    """The callback says that there is nothing to do. The test looks for it."""
    made = WARNINGS[case]()
    made.compile(sgd() if case == "plain" else DistributedOptimizer(sgd()), "mse")
    callbacks = [MetricAverageCallback(), OmniReduceCallback()]  # the first one's sum is no reason
    inputs, targets = data(hvd.rank())
    if case == "rows":
        targets = np.ones((EXAMPLES, 4 * WIDTH), np.float32)
    made.fit(inputs, targets, batch_size=BATCH, verbose=0, callbacks=callbacks)


def main() -> None:
    hvd.init()
    folder = Path(sys.argv[1])
    if len(sys.argv) > 2:
        check_warnings(sys.argv[2])
    else:
        for i, options in enumerate(({}, {"sparse_as_dense": True})):
            check(options, folder / f"{hvd.rank()}-{i}.csv")
        check_epoch_without_a_look()
    hvd.allgather_object(None)  # all ranks are done
    print(f"all well with Keras {3 if is_keras_3() else 2}", flush=True)


main()
