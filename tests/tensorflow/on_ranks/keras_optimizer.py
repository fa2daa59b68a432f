"""On each rank: DistributedOptimizer in the cases named by the arguments, Keras 2 or 3."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

import omnihvd.keras as ours
from omnihvd.keras import DistributedOptimizer, is_keras_3

keras: Any = tf.keras
WIDTH, BATCH, STEPS = 64, 4, 6
FOLDER = Path(sys.argv[1])


def data(rank: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(rank)
    return rng.random((STEPS * BATCH, WIDTH), np.float32), rng.random(STEPS * BATCH, np.float32)


def data_with_overflow(rank: int) -> tuple[np.ndarray, np.ndarray]:
    """Rank 1's gradients of its third batch exceed float16."""
    inputs, targets = data(rank)
    if rank == 1:
        targets[2 * BATCH] = 1e4
    return inputs, targets


def data_of_all(parts: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """For one process: its batch k holds every rank's batch k."""
    inputs, targets = (
        np.concatenate([part[i].reshape(STEPS, BATCH, -1) for part in parts], axis=1)
        for i in (0, 1)
    )
    return inputs.reshape(-1, WIDTH), targets.reshape(-1)


def network() -> Any:
    keras.utils.set_random_seed(1)
    layers = keras.layers
    inputs = layers.Input((WIDTH,))
    hidden = layers.Dense(WIDTH, activation="tanh")(inputs)
    return keras.Model(inputs, layers.Dense(1, dtype="float32")(hidden))


def fit(model: Any, parts: list[tuple[np.ndarray, np.ndarray]], steps: slice = slice(None)) -> None:
    inputs, targets = data_of_all(parts)
    size = BATCH * len(parts)
    rows = slice((steps.start or 0) * size, (steps.stop or STEPS) * size)
    model.fit(inputs[rows], targets[rows], batch_size=size, shuffle=False, verbose=0)


def same_on_all_ranks(model: Any) -> None:
    mine = [np.asarray(weight) for weight in model.get_weights()]
    for others in hvd.allgather_object(mine):
        for one, other in zip(mine, others):
            np.testing.assert_array_equal(one, other)


def equal_weights(model: Any, expected: Any, tolerance: float = 1e-5) -> None:
    for one, other in zip(model.get_weights(), expected.get_weights()):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


def fit_through_an_overflow(make: Any, steps_per_execution: int = 1) -> None:
    """As one process with all batches: no rank makes the step in which one overflowed."""
    together, alone = network(), network()
    options = {"loss": "mse", "steps_per_execution": steps_per_execution}
    together.compile(DistributedOptimizer(make()), **options)
    alone.compile(make(), **options)
    fit(together, [data_with_overflow(hvd.rank())])
    fit(alone, [data_with_overflow(rank) for rank in range(hvd.size())])
    same_on_all_ranks(together)
    equal_weights(together, alone, 2e-3)
    assert np.all(np.isfinite(together.get_weights()[0]))
    scale = "dynamic_scale" if is_keras_3() else "loss_scale"
    assert float(getattr(together.optimizer, scale)) == 2.0**14, "the overflow was not noticed"


def overflow() -> None:
    keras.mixed_precision.set_global_policy("mixed_float16")
    fit_through_an_overflow(lambda: keras.optimizers.SGD(0.05, momentum=0.9))
    if is_keras_3():
        unscaled_loss_is_refused()
    else:  # as model.compile() has made it
        scaled = keras.mixed_precision.LossScaleOptimizer
        fit_through_an_overflow(lambda: scaled(keras.optimizers.SGD(0.05)))
    keras.mixed_precision.set_global_policy("float32")


def overflow_options() -> None:
    """Options of Keras 3 that act at some steps only."""
    sgd = keras.optimizers.SGD
    keras.mixed_precision.set_global_policy("mixed_float16")
    fit_through_an_overflow(lambda: keras.optimizers.LossScaleOptimizer(sgd(0.05)))
    fit_through_an_overflow(lambda: sgd(0.05, gradient_accumulation_steps=2), 2)
    fit_through_an_overflow(
        lambda: sgd(0.05, use_ema=True, ema_overwrite_frequency=2, global_clipnorm=0.1), 3
    )
    keras.mixed_precision.set_global_policy("float32")


def refuses(message: str, action: Any, *arguments: Any) -> None:
    # No fit(): the dataset's iterator, left open by an error, may hang Python's end.
    try:
        action(*arguments)
    except RuntimeError as error:
        assert message in str(error), error
    else:
        raise AssertionError(f"no error says: {message}")


def unscaled_loss_is_refused() -> None:
    """A loop of one's own that knows nothing of loss scales would divide by one."""
    model = network()
    optimizer = DistributedOptimizer(keras.optimizers.SGD(0.05))
    gradients = [tf.ones_like(weight) for weight in model.trainable_variables]
    refuses("scale_loss", optimizer.apply, gradients, model.trainable_variables)
    optimizer.scale_loss(1.0)
    optimizer.apply(gradients, model.trainable_variables)


def inner() -> None:
    """Under another optimizer ours cannot know that it is called on all ranks."""
    model = network()
    model.dtype_policy = keras.mixed_precision.Policy("mixed_float16")
    model.compile(DistributedOptimizer(keras.optimizers.SGD(0.05)), "mse")
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    refuses("DistributedOptimizer(LossScaleOptimizer(", model.train_on_batch, *data(0))
    eager = network()
    outer = keras.optimizers.LossScaleOptimizer(DistributedOptimizer(keras.optimizers.SGD(0.05)))
    eager.compile(outer, "mse", run_eagerly=True)
    refuses("DistributedOptimizer(LossScaleOptimizer(", eager.train_on_batch, *data(0))


class Warmup(keras.optimizers.schedules.LearningRateSchedule):
    """Without get_config."""

    def __call__(self, step: Any) -> Any:
        return 0.01 * (tf.cast(step, tf.float32) + 1)


def used() -> None:
    """A used optimizer goes on where it was, with moments, iterations and its own schedule."""
    everyone = [data(rank) for rank in range(hvd.size())]
    first, rest = slice(0, 3), slice(3, STEPS)
    expected, model = network(), network()
    rate = (
        Warmup() if is_keras_3() else 0.01
    )  # Horovod's own code, for Keras 2, asks for get_config
    expected.compile(keras.optimizers.Adam(rate), "mse")
    fit(expected, everyone)
    model.compile(keras.optimizers.Adam(rate), "mse")
    fit(model, everyone, first)
    before = model.optimizer
    model.compile(DistributedOptimizer(before), "mse")
    assert model.optimizer is before
    assert int(model.optimizer.iterations) == 3
    fit(model, [data(hvd.rank())], rest)
    equal_weights(model, expected)
    same_on_all_ranks(model)


def saved(suffix: str = ".keras") -> None:
    """Loaded by `load_model`, training goes on as if it had not been interrupted."""
    everyone, mine = [data(rank) for rank in range(hvd.size())], [data(hvd.rank())]
    first, rest = slice(0, 3), slice(3, STEPS)
    expected, model = network(), network()
    expected.compile(keras.optimizers.Adam(0.01), "mse")
    fit(expected, everyone)
    model.compile(DistributedOptimizer(keras.optimizers.Adam(0.01)), "mse")
    fit(model, mine, first)
    file = FOLDER / f"{hvd.rank()}{suffix}"
    model.save(file)
    fit(model, mine, rest)
    equal_weights(model, expected)

    for again in (False, True):  # to distribute it once more does no harm
        loaded = ours.load_model(file)
        assert int(loaded.optimizer.iterations) == 3
        if again:
            loaded.compile(DistributedOptimizer(loaded.optimizer), "mse")
        fit(loaded, mine, rest)
        equal_weights(loaded, expected)
        same_on_all_ranks(loaded)

    plain = keras.models.load_model(file)
    assert type(plain.optimizer) is keras.optimizers.Adam
    assert int(plain.optimizer.iterations) == 3
    plain.compile(DistributedOptimizer(plain.optimizer), "mse")
    fit(plain, mine, rest)
    equal_weights(plain, expected)


def saved_h5() -> None:
    saved(".h5")


def callbacks() -> None:
    """Ranks start from other weights, and each sees its own validation loss: they stop together."""
    model = network()
    model.set_weights([weight + hvd.rank() for weight in model.get_weights()])
    model.compile(DistributedOptimizer(keras.optimizers.Adam(0.01)), "mse")
    validation = data(9)[0], data(9)[1] + hvd.rank() * np.float32(0.1)
    history = model.fit(
        *data(hvd.rank()),
        batch_size=BATCH,
        epochs=30,
        verbose=0,
        validation_data=validation,
        callbacks=[
            ours.BroadcastCallback(),
            ours.MetricAverageCallback(),
            keras.callbacks.EarlyStopping(patience=0),
        ],
    ).history
    same_on_all_ranks(model)
    assert all(other == history for other in hvd.allgather_object(history)), history
    assert len(history["loss"]) < 30, "nobody stopped"


def tape() -> None:
    """A loop of one's own on a model of Keras."""
    model = network()

    def gradients(rank: int, distribute: Any) -> list[Any]:
        inputs, targets = data(rank)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(inputs)[:, 0] - targets) ** 2)
        return [g.numpy() for g in distribute(tape).gradient(loss, model.trainable_variables)]

    own = [gradients(rank, lambda tape: tape) for rank in range(hvd.size())]
    for reduced, *each in zip(gradients(hvd.rank(), hvd.DistributedGradientTape), *own):
        np.testing.assert_allclose(reduced, np.mean(each, 0), rtol=1e-5, atol=1e-6)


def other_keras() -> None:
    """An optimizer of the Keras that tf.keras is not."""
    if is_keras_3():
        import tf_keras as other

        weights = tf.Variable(tf.zeros(WIDTH))
        optimizer = DistributedOptimizer(other.optimizers.SGD(1.0))
        optimizer.minimize(lambda: tf.reduce_sum(weights) * (1.0 + hvd.rank()), [weights])
    else:
        import keras as other

        weights = other.Variable(np.zeros(WIDTH, np.float32))
        optimizer = DistributedOptimizer(other.optimizers.SGD(1.0))
        optimizer.apply([tf.fill([WIDTH], 1.0 + hvd.rank())], [weights])
    np.testing.assert_allclose(weights.numpy(), -(hvd.size() + 1) / 2)


def xla() -> None:
    model = network()
    model.compile(DistributedOptimizer(keras.optimizers.SGD(0.05)), "mse", jit_compile=True)
    refuses("jit_compile=False", model.train_on_batch, *data(0))


def main() -> None:
    hvd.init()
    for case in sys.argv[2:]:
        globals()[case]()
        print(f"{case}: as it should be", flush=True)
    hvd.allgather_object(None)  # all ranks are done


main()
