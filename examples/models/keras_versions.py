"""NCF and DeepLight in Keras, with the weights and batches, and so the losses, of worker.py.

    horovodrun -np 4 python examples/models/keras_versions.py --model ncf deeplight

Works with Keras 3, and with Keras 2 (TF_USE_LEGACY_KERAS=1). Dropout draws other numbers than
PyTorch's: with it losses are not the same, but alike.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import deeplight
import horovod.tensorflow as hvd
import ncf
import numpy as np
import tensorflow as tf
import training
from registry import MODELS
from task import SIZES, Task


class NeuMF(tf.keras.Model):
    def __init__(self, task: ncf.Ncf, source: Any) -> None:
        super().__init__()
        self.tables = [embedding(table) for table in (*source.users, *source.items)]
        linear = [part for part in source.hidden if hasattr(part, "weight")]
        self.hidden = [dense(part, "relu") for part in linear]
        self.score = dense(source.score)

    def call(self, pairs: Any) -> Any:
        user, item = pairs[:, 0], pairs[:, 1]
        users, items = self.tables[:2], self.tables[2:]
        product = users[0](user) * items[0](item)
        hidden = tf.concat([users[1](user), items[1](item)], 1)
        for layer in self.hidden:
            hidden = layer(hidden)
        return self.score(tf.concat([product, hidden], 1))[:, 0]


class DeepFwFM(tf.keras.Model):
    def __init__(self, task: deeplight.DeepLight, source: Any) -> None:
        super().__init__()
        self.table = embedding(source.table)
        self.first = variable(self, "first", source.first)
        self.between = variable(self, "between", source.between)
        linear = [part for part in source.deep if hasattr(part, "weight")]
        self.deep = [dense(part, "relu") for part in linear[:-1]]
        self.dropout = tf.keras.layers.Dropout(0.0 if task.size == "tiny" else 0.5)
        self.score = dense(linear[-1])

    def call(self, inputs: Any) -> Any:
        values = tf.cast(inputs[:, 1], tf.float32)
        found = self.table(tf.cast(inputs[:, 0], tf.int32)) * values[..., None]
        both = (self.between + tf.transpose(self.between)) / 2
        weights = tf.linalg.band_part(both, 0, -1) - tf.linalg.band_part(both, 0, 0)
        pairs = tf.einsum("bik,bjk,ij->b", found, found, weights)
        hidden = tf.reshape(found, (-1, deeplight.FIELDS * deeplight.WIDTH))
        for layer in self.deep:
            hidden = self.dropout(layer(hidden), training=True)
        return tf.reduce_sum(found * self.first, (1, 2)) + pairs + self.score(hidden)[:, 0]


def embedding(source: Any) -> Any:
    rows, width = source.weight.shape
    return tf.keras.layers.Embedding(rows, width, embeddings_initializer=constant(source.weight))


def dense(source: Any, activation: str | None = None) -> Any:
    return tf.keras.layers.Dense(
        source.weight.shape[0],
        activation,
        kernel_initializer=constant(source.weight.t()),
        bias_initializer=constant(source.bias),
    )


def variable(model: Any, name: str, source: Any) -> Any:
    return model.add_weight(name=name, shape=source.shape, initializer=constant(source))


def constant(source: Any) -> Any:
    return tf.keras.initializers.Constant(source.detach().numpy().copy())


KERAS = {"ncf": NeuMF, "deeplight": DeepFwFM}


def optimizer_of(task: Task, source: Any) -> tuple[Any, float]:
    """As PyTorch's Adam, and its L2, which Keras' would not add to the gradients."""
    group = task.optimizer(source).param_groups[0]
    first, second = group["betas"]
    rate = group["lr"]
    adam = tf.keras.optimizers.Adam(rate, beta_1=first, beta_2=second, epsilon=group["eps"])
    return adam, group["weight_decay"]


def train(task: Task, name: str, seed: int, steps: int, compression: Any) -> list[float]:
    """Losses, means of the ranks."""
    source = training.drawn_model(task, seed)
    model = KERAS[name](task, source)
    optimizer, decay = optimizer_of(task, source)
    losses = []
    for step in range(steps):
        inputs, labels = (tf.constant(part.numpy()) for part in task.batch(seed, step))
        with tf.GradientTape() as tape:
            scores = model(inputs)
            each = tf.nn.sigmoid_cross_entropy_with_logits(labels, scores)
            loss = tf.reduce_mean(each)
        tape = hvd.DistributedGradientTape(tape, compression=compression)
        variables = model.trainable_variables
        gradients = [tf.convert_to_tensor(g) for g in tape.gradient(loss, variables)]
        gradients = [g + decay * tf.convert_to_tensor(v) for g, v in zip(gradients, variables)]
        optimizer.apply_gradients(zip(gradients, variables))
        losses.append(float(loss))
    mean: np.ndarray = hvd.allreduce(tf.constant(losses), name="losses").numpy()
    return mean.tolist()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", nargs="+", choices=list(KERAS), required=True)
    parser.add_argument("--data", type=Path, help="a folder (sources.py)")
    parser.add_argument("--size", choices=SIZES, default="default")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compression", choices=["none", "omnireduce"], default="omnireduce")
    parser.add_argument("--json", type=Path, help="write losses by model here")
    args = parser.parse_args()
    compression = hvd.Compression.none
    if args.compression == "omnireduce":
        import omnihvd  # before hvd.init()

        compression = omnihvd.OmniReduce
    hvd.init()
    found = {}
    for name in args.model:
        task = MODELS[name](args.data, args.size, hvd.rank(), hvd.size())
        losses = found[name] = train(task, name, args.seed, args.steps, compression)
        if hvd.rank() == 0:
            print(f"{name}, {task.source}: loss {losses[0]:.4f} to {losses[-1]:.4f}", flush=True)
    if args.json and hvd.rank() == 0:
        args.json.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
