"""A training loop of one's own in TensorFlow 2: word vectors, with hvd.DistributedGradientTape.

    horovodrun -np 2 python examples/tensorflow2_custom_loop.py --text book.txt

Skip-gram with negative sampling (Mikolov et al., "Distributed Representations of Words and
Phrases", NIPS 2013). Both tables get tf.IndexedSlices as gradients. Without --text, words are drawn
with Zipf frequencies.
"""

from __future__ import annotations

import argparse
import re
import time
from collections import Counter
from pathlib import Path

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--text", type=Path, help="a file (default: generated words)")
    parser.add_argument("--compression", choices=["none", "fp16", "omnireduce"],
                        default="omnireduce")  # fmt: skip
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=512, help="pairs of words a rank")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--words", type=int, default=50_000, help="of generated text")
    parser.add_argument("--negative", type=int, default=5, help="samples for each pair")
    parser.add_argument("--learning-rate", type=float, default=10)
    return parser.parse_args()


def load(args: argparse.Namespace) -> tuple[np.ndarray, int]:
    """The text as numbers, and how many words there are."""
    if args.text:
        words = re.findall(r"\w+", args.text.read_text(errors="replace").lower())
        numbers = {word: i for i, (word, _) in enumerate(Counter(words).most_common())}
        return np.array([numbers[word] for word in words]), len(numbers)
    if hvd.rank() == 0:
        print(f"no --text: {args.words:,} words drawn with Zipf frequencies", flush=True)
    weights = 1 / np.arange(1, args.words + 1)
    text = np.random.default_rng(1).choice(args.words, 500_000, p=weights / weights.sum())
    return text, args.words


def main() -> None:
    args = parse_arguments()
    if args.compression == "omnireduce":
        import omnihvd  # before hvd.init()

        compression = omnihvd.OmniReduce
    else:
        compression = getattr(hvd.Compression, args.compression)
    hvd.init()
    text, words = load(args)
    share = len(text) // hvd.size()
    text = text[hvd.rank() * share : (hvd.rank() + 1) * share]
    rng = np.random.default_rng(10 + hvd.rank())

    tables = [tf.Variable(tf.random.uniform([words, args.width], -0.5, 0.5) / args.width)
              for _ in range(2)]  # fmt: skip
    hvd.broadcast_variables(tables, root_rank=0)

    @tf.function
    def step(centre: tf.Tensor, context: tf.Tensor, negative: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as plain:
            vectors = tf.gather(tables[0], centre)
            near = tf.reduce_sum(vectors * tf.gather(tables[1], context), 1)
            far = tf.einsum("nw,nkw->nk", vectors, tf.gather(tables[1], negative))
            losses = tf.math.softplus(-near) + tf.reduce_sum(tf.math.softplus(far), 1)
            loss = tf.reduce_mean(losses)
        tape = hvd.DistributedGradientTape(plain, compression=compression)
        for table, gradient in zip(tables, tape.gradient(loss, tables)):
            change = args.learning_rate * gradient.values
            table.scatter_sub(tf.IndexedSlices(change, gradient.indices))
        return loss

    start = time.perf_counter()
    for number in range(1, args.steps + 1):
        at = rng.integers(1, len(text) - 1, args.batch_size)
        near = at + rng.choice([-1, 1], args.batch_size)
        negative = text[rng.integers(0, len(text), (args.batch_size, args.negative))]
        loss = step(*(tf.constant(x, tf.int64) for x in (text[at], text[near], negative)))
        if number % 20 == 0 or number == args.steps:
            mean = float(hvd.allreduce(loss, name="loss"))
            if hvd.rank() == 0:
                seconds = (time.perf_counter() - start) / number
                print(
                    f"step {number}/{args.steps}  loss {mean:.4f}  {seconds:.3f} s/step", flush=True
                )
    if hvd.rank() == 0 and args.compression == "omnireduce":
        print(f"OmniReduce: {omnihvd.stats()}", flush=True)


if __name__ == "__main__":
    main()
