"""Neural collaborative filtering in Keras, trained by Horovod with OmniReduce.

    horovodrun -np 2 python examples/keras_recommender.py

The model is the NeuMF of He et al., "Neural Collaborative Filtering" (WWW 2017): embeddings of
users and items, their product and a small network. A batch touches few rows of the tables.
--ratings names a CSV or TSV file of lines "user,item" or "user,item,rating[,...]" (MovieLens's
ratings.csv); without it, ratings are drawn with Zipf frequencies. Works with Keras 3, and with
Keras 2 (TF_USE_LEGACY_KERAS=1).
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ratings", type=Path, help="a file (default: generated)")
    parser.add_argument("--compression", choices=["none", "fp16", "omnireduce"],
                        default="omnireduce")  # fmt: skip
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=256, help="examples a rank")
    parser.add_argument("--width", type=int, default=64, help="of an embedding")
    parser.add_argument("--users", type=int, default=50_000, help="of generated ratings")
    parser.add_argument("--items", type=int, default=20_000, help="of generated ratings")
    parser.add_argument("--examples", type=int, default=40_000, help="generated ratings")
    parser.add_argument("--learning-rate", type=float, default=0.5)
    parser.add_argument("--log", type=Path, help="CSV file of the epochs' logs")
    return parser.parse_args()


def load(args: argparse.Namespace) -> tuple[np.ndarray, np.ndarray]:
    """Users and items of the ratings, numbered from 0."""
    if args.ratings:
        text = args.ratings.read_text().replace("::", ",").replace("\t", ",")
        rows = [line.split(",")[:2] for line in text.splitlines()]
        rows = [row for row in rows if len(row) == 2 and row[0].strip().isdigit()]
        if not rows:
            raise SystemExit(f'{args.ratings} has no line "user,item"')
        users, items = np.array(rows, np.int64).T
        return tuple(np.unique(x, return_inverse=True)[1] for x in (users, items))  # type: ignore
    if hvd.rank() == 0:
        print(f"no --ratings: {args.examples:,} ratings drawn with Zipf frequencies", flush=True)
    rng = np.random.default_rng(1)

    def zipf(n: int) -> np.ndarray:
        weights = 1 / np.arange(1, n + 1)
        return rng.choice(n, args.examples, p=weights / weights.sum())

    return zipf(args.users), zipf(args.items)


def neumf(users: int, items: int, width: int) -> Any:
    layers = tf.keras.layers
    user, item = layers.Input((), dtype="int32"), layers.Input((), dtype="int32")
    product = layers.Multiply()(
        [layers.Embedding(users, width)(user), layers.Embedding(items, width)(item)]
    )
    hidden = layers.Concatenate()(
        [layers.Embedding(users, width)(user), layers.Embedding(items, width)(item)]
    )
    for units in (width, width // 2):
        hidden = layers.Dense(units, activation="relu")(hidden)
    score = layers.Dense(1, activation="sigmoid")(layers.Concatenate()([product, hidden]))
    return tf.keras.Model([user, item], score)


def main() -> None:
    args = parse_arguments()
    if args.compression != "omnireduce":
        os.environ["OMNIHVD_ENABLE"] = "0"  # omnihvd's optimizer for Keras 3, without its sums
    import omnihvd  # before hvd.init()
    from omnihvd.keras import DistributedOptimizer, OmniReduceCallback

    hvd.init()
    users, items = load(args)
    n_users, n_items = int(users.max()) + 1, int(items.max()) + 1
    # For every rating, an item that the user did not rate (most likely).
    rng = np.random.default_rng(2)
    users, items = np.tile(users, 2), np.concatenate([items, rng.integers(0, n_items, len(items))])
    liked = np.repeat(np.float32([1, 0]), len(users) // 2)
    order = rng.permutation(len(users))
    # As many steps on each rank, or some would wait for others at the end for ever.
    share = len(users) // hvd.size() // args.batch_size * args.batch_size
    if share == 0:
        raise SystemExit(f"{len(users)} examples do not fill a batch on each rank")
    mine = order[hvd.rank() * share : (hvd.rank() + 1) * share]

    tf.keras.utils.set_random_seed(1)  # the same weights on all ranks
    model = neumf(n_users, n_items, args.width)
    compression = {
        "none": hvd.Compression.none,
        "fp16": hvd.Compression.fp16,
        "omnireduce": omnihvd.OmniReduce,
    }[args.compression]
    optimizer = DistributedOptimizer(
        tf.keras.optimizers.SGD(args.learning_rate * hvd.size()), compression=compression
    )
    model.compile(optimizer, "binary_crossentropy", metrics=["accuracy"])
    callbacks = [OmniReduceCallback()] if args.compression == "omnireduce" else []
    if args.log and hvd.rank() == 0:
        callbacks.append(tf.keras.callbacks.CSVLogger(str(args.log)))
    model.fit(
        [users[mine].astype(np.int32), items[mine].astype(np.int32)],
        liked[mine],
        batch_size=args.batch_size,
        epochs=args.epochs,
        callbacks=callbacks,
        verbose=2 if hvd.rank() == 0 else 0,
    )
    if hvd.rank() == 0 and args.compression == "omnireduce":
        print(f"OmniReduce: {omnihvd.stats()}", flush=True)


if __name__ == "__main__":
    main()
