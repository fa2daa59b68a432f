"""On each rank: Horovod for TensorFlow with codecs."""

from __future__ import annotations

import horovod.tensorflow as hvd
import numpy as np
import pytest
import tensorflow as tf

import omnihvd
from omnihvd import OmniReduce

CODECS = {
    OmniReduce.natural: 0.6, OmniReduce.qsgd: 0.05, OmniReduce.terngrad: 2.5,
    OmniReduce.sign: 1.2, OmniReduce.int8: 0.05, OmniReduce.int4: 0.4,
}  # fmt: skip


def tensor(rank: int, count: int) -> np.ndarray:
    return np.random.default_rng(rank).standard_normal(count).astype(np.float32)


def mean(count: int) -> np.ndarray:
    return np.mean([tensor(rank, count) for rank in range(hvd.size())], 0)


def error(result: tf.Tensor, expected: np.ndarray) -> float:
    return float(np.linalg.norm(result.numpy() - expected) / np.linalg.norm(expected))


def assert_same_bits(result: tf.Tensor) -> None:
    everyone = hvd.allgather(tf.reshape(result, [1, -1])).numpy()
    assert (everyone == everyone[0]).all()


def sums() -> None:
    for make, most in CODECS.items():
        codec = make()

        def reduce(x: tf.Tensor, codec: object = codec) -> tf.Tensor:
            return hvd.allreduce(x, compression=codec)

        for function in (reduce, tf.function(reduce)):
            for count in (1, 257, 50_003):
                result = function(tf.constant(tensor(hvd.rank(), count)))
                assert result.shape == (count,) and result.dtype == tf.float32
                assert_same_bits(result)
                if count > 50_000:
                    assert 0 < error(result, mean(count)) < most, make
    codec = OmniReduce.int8()
    x = tf.constant(tensor(hvd.rank(), 6000))
    total = hvd.allreduce(tf.reshape(x, [60, 100]), op=hvd.Sum, compression=codec)
    assert total.shape == (60, 100)
    assert error(tf.reshape(total, [-1]), mean(6000) * hvd.size()) < 0.05
    half = hvd.allreduce(tf.cast(x, tf.float16), compression=codec)
    assert half.dtype == tf.float16 and error(tf.cast(half, tf.float32), mean(6000)) < 0.05
    for result in hvd.grouped_allreduce([x, 2 * x], compression=codec, op=hvd.Sum):
        assert_same_bits(result)
    assert error(result, 2 * mean(6000) * hvd.size()) < 0.05
    ones = hvd.allreduce(tf.ones(70_000, tf.int64), op=hvd.Sum, compression=codec)
    assert (ones.numpy() == hvd.size()).all()
    for op, factor in ((hvd.Average, 1), (hvd.Sum, hvd.size())):
        group = [tf.zeros([0]), x]  # one goes whole, beside what travels under the codec
        empty, floats = hvd.grouped_allreduce(group, op=op, compression=codec)
        assert empty.shape == (0,) and error(floats, mean(6000) * factor) < 0.05
    with pytest.raises(ValueError, match=r"int8 needs op=hvd\.Average or op=hvd\.Sum"):
        hvd.allreduce(x, op=hvd.Max, compression=codec)
    sent, ctx = codec.compress(x)
    ctx.begin(tf.constant(1.0))
    with pytest.raises(tf.errors.InvalidArgumentError, match="not summed by omnihvd"):
        codec.decompress(sent, ctx)


def shapes_that_are_not_known() -> None:
    codec = OmniReduce.int8()

    @tf.function(input_signature=[tf.TensorSpec([None], name="of_any_size")])
    def reduce(x: tf.Tensor) -> tf.Tensor:
        return hvd.allreduce(x, compression=codec)

    assert np.allclose(reduce(tf.constant(tensor(hvd.rank(), 6000))).numpy(), mean(6000), atol=1e-5)


def gradients_pass() -> None:
    codec, x = OmniReduce.int8(), tf.constant(tensor(hvd.rank(), 6000))

    def slope(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(hvd.allreduce(x, compression=codec)) * (1.0 + hvd.rank())
        return tape.gradient(loss, x)

    for function in (slope, tf.function(slope)):
        assert np.allclose(function(x).numpy(), (1 + hvd.size()) / 2)


def training() -> None:
    target = tensor(99, 64 * 10).reshape(64, 10)
    for make in (OmniReduce.natural, OmniReduce.int8):
        weights, bias = tf.Variable(tf.zeros([64, 10])), tf.Variable(tf.zeros([10]))
        optimizer = tf.keras.optimizers.SGD(0.2)
        codec = make()

        @tf.function
        def step(x: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((x @ weights + bias - x @ target) ** 2)  # noqa: B023
            tape = hvd.DistributedGradientTape(tape, compression=codec)  # noqa: B023
            variables = [weights, bias]  # noqa: B023
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))  # noqa: B023
            return loss

        losses = [
            float(step(tf.constant(tensor(100 * i + hvd.rank(), 64 * 64).reshape(64, 64))))
            for i in range(60)
        ]
        assert losses[-1] < losses[0] / 5, losses
        assert_same_bits(weights)


if __name__ == "__main__":
    hvd.init()
    sums()
    shapes_that_are_not_known()
    gradients_pass()
    training()
    counted = omnihvd.stats()["codecs"]
    assert counted["bytes"] < 0.4 * counted["plain_bytes"]
    print("all well")
