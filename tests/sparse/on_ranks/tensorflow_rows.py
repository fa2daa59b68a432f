"""On each rank: TensorFlow's dense and sparse gradients, eagerly, in tf.function and in Keras."""

from __future__ import annotations

import os

import horovod.tensorflow as hvd
import horovod.tensorflow.keras as keras_hvd
import numpy as np
import tensorflow as tf

import omnihvd
from omnihvd import OmniReduce

ROWS, WIDTH = 3000, 64


def slices_of(
    rank: int, n: int = 200, dtype: str = "float32", among: int = ROWS
) -> tf.IndexedSlices:
    """The first rank has no rows. among: the ranks share most rows if these are few."""
    rows = np.random.default_rng(rank).integers(0, among, n if rank else 0)
    values = np.repeat((rows % 13 + rank + 1)[:, None], WIDTH, 1).astype(dtype)
    return tf.IndexedSlices(tf.constant(values), tf.constant(rows), tf.constant([ROWS, WIDTH]))


def dense_sum(n: int = 200, ranks: list[int] | None = None, among: int = ROWS) -> np.ndarray:
    total = np.zeros((ROWS, WIDTH), np.float32)
    for rank in range(hvd.size()) if ranks is None else ranks:
        one = slices_of(rank, n, among=among)
        np.add.at(total, one.indices.numpy(), one.values.numpy())
    return total


def sparse(among: int, gathered: bool) -> None:
    """gathered: the ranks share so few of the rows that Horovod gathers them."""
    expected = dense_sum(among=among)

    def reduce(slices: tf.IndexedSlices) -> tf.IndexedSlices:
        return hvd.allreduce(slices, op=hvd.Sum, compression=OmniReduce, name="rows")

    unique = [len(np.unique(slices_of(r, among=among).indices)) for r in range(hvd.size())]
    own, row = unique[hvd.rank()], WIDTH * 4
    for call in (reduce, tf.function(reduce)):
        figures = omnihvd.Statistics()
        result = call(slices_of(hvd.rank(), among=among))
        found = figures.read()
        assert found["sparse"] == {
            "gradients": int(not gathered),
            "own_bytes": own * row * (not gathered),
            "gathered_bytes": sum(unique) * (row + 8) * (not gathered),
            "union_bytes": np.count_nonzero(expected.any(1)) * row * (not gathered),
            "dense_bytes": ROWS * row * (not gathered),
        }, found
        if gathered:
            assert found["passed"]["rows"] == {"calls": 1, "bytes": own * row}, found
        np.testing.assert_array_equal(tf.convert_to_tensor(result).numpy(), expected)
        indices = result.indices.numpy()
        assert np.array_equal(indices, np.flatnonzero(expected.any(1))), "not the union"
    for scales in ({}, {"prescale_factor": 0.5, "postscale_factor": 4.0}):
        mine = slices_of(hvd.rank(), among=among)
        average = hvd.allreduce(mine, compression=OmniReduce, **scales)
        average = tf.convert_to_tensor(average).numpy()
        scale = 2 if scales else 1
        np.testing.assert_allclose(average, scale * expected / hvd.size(), rtol=1e-6)
    total = hvd.allreduce(slices_of(hvd.rank(), among=among), average=False, compression=OmniReduce)
    np.testing.assert_array_equal(tf.convert_to_tensor(total).numpy(), expected)


def sparse_variants() -> None:
    """Other numbers of rows in one tf.function, other dtypes, groups, process sets."""

    @tf.function(reduce_retracing=True)
    def reduce(slices: tf.IndexedSlices) -> tf.IndexedSlices:
        return hvd.allreduce(slices, op=hvd.Sum, compression=OmniReduce)

    for n in (200, 30, 500):
        result = tf.convert_to_tensor(reduce(slices_of(hvd.rank(), n)))
        np.testing.assert_array_equal(result.numpy(), dense_sum(n))
    for dtype in ("float16", "float64", "int32"):
        result = tf.convert_to_tensor(reduce(slices_of(hvd.rank(), dtype=dtype)))
        np.testing.assert_array_equal(result.numpy(), dense_sum().astype(dtype))
    mixed = [tf.ones(5000), slices_of(hvd.rank()), tf.ones(3), slices_of(hvd.rank(), 30)]
    total = hvd.grouped_allreduce(mixed, op=hvd.Sum, compression=OmniReduce)
    assert all(isinstance(total[i], tf.IndexedSlices) for i in (1, 3))
    expected = [np.full(5000, hvd.size()), dense_sum(), np.full(3, hvd.size()), dense_sum(30)]
    for ours, known in zip(total, expected):
        np.testing.assert_array_equal(tf.convert_to_tensor(ours).numpy(), known)
    rows = total[1].indices.numpy()
    assert np.array_equal(rows, np.flatnonzero(dense_sum().any(1))), "not the union"


def process_set(pair: hvd.ProcessSet) -> None:
    total = hvd.allreduce(
        slices_of(hvd.rank()), op=hvd.Sum, compression=OmniReduce, process_set=pair
    )
    total = tf.convert_to_tensor(total).numpy()
    np.testing.assert_array_equal(total, dense_sum(ranks=[0, hvd.size() - 1]))


def dense() -> None:
    for dtype in ("uint8", "int8", "int32", "int64", "float16", "float32", "float64"):
        mine = np.zeros(200_000, dtype)
        mine[1000:5000] = hvd.rank() + 1
        expected = (mine > 0) * (hvd.size() * (hvd.size() + 1) // 2)
        result = hvd.allreduce(tf.constant(mine), op=hvd.Sum, compression=OmniReduce, name=dtype)
        np.testing.assert_array_equal(result.numpy(), expected.astype(dtype))
    results = hvd.grouped_allreduce(
        [tf.ones(100_000) * i for i in range(3)], op=hvd.Sum, compression=OmniReduce
    )
    for i, result in enumerate(results):
        np.testing.assert_array_equal(result.numpy(), np.full(100_000, i * hvd.size()))


def tape() -> None:
    table = tf.Variable(tf.ones([ROWS, WIDTH]))
    weights = tf.Variable(tf.ones([WIDTH, 500]))

    @tf.function
    def gradients(rows: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as plain:
            loss = tf.reduce_sum(tf.gather(table, rows) @ weights)
        tape = hvd.DistributedGradientTape(plain, compression=OmniReduce, op=hvd.Sum)
        return [tf.convert_to_tensor(g) for g in tape.gradient(loss, [table, weights])]

    rows = [tf.range(rank, 600, rank + 1) for rank in range(hvd.size())]
    ours, dense_part = gradients(rows[hvd.rank()])
    counts = sum(np.bincount(r.numpy(), minlength=ROWS) for r in rows)
    np.testing.assert_allclose(ours.numpy(), counts[:, None] * np.full((ROWS, WIDTH), 500.0))
    np.testing.assert_allclose(dense_part.numpy(), np.full((WIDTH, 500), float(counts.sum())))


def keras_fit() -> None:
    """All ranks end with the same weights, and these are not where they began."""
    tf.keras.utils.set_random_seed(1)
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Embedding(ROWS, WIDTH, input_length=4),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(1),
        ]
    )
    optimizer = keras_hvd.DistributedOptimizer(
        tf.keras.optimizers.legacy.SGD(0.1), compression=OmniReduce
    )
    model.compile(optimizer, "mse")
    rng = np.random.default_rng(hvd.rank())
    model.build((None, 4))
    before = [w.copy() for w in model.get_weights()]
    model.fit(rng.integers(0, ROWS, (64, 4)), rng.random(64), batch_size=16, verbose=0)
    for then, now in zip(before, model.get_weights()):
        assert not np.array_equal(then, now)
        everyone = hvd.allgather_object(now)
        assert all(np.array_equal(now, other) for other in everyone)


def main() -> None:
    size = int(os.environ["OMPI_COMM_WORLD_SIZE"])
    pair = hvd.ProcessSet([0, size - 1])
    hvd.init(process_sets=[pair] if size > 2 else [])  # Horovod refuses the global set's twin
    dense()
    sparse(among=ROWS, gathered=True)
    sparse(among=100, gathered=False)
    sparse_variants()
    if size > 2 and pair.included():
        process_set(pair)
    tape()
    keras_fit()
    assert omnihvd.stats()["calls"] > 0, omnihvd.stats()
    print("all well", flush=True)


main()
