"""The LSTM language model of large vocabularies: a projected LSTM under a sampled softmax.

Jozefowicz et al., "Exploring the Limits of Language Modeling" (2016), LSTM-2048-512: Adagrad with
0.2, steps of 20 words, 8192 samples, 793,471 words. The sampled softmax, the batches and all else
are language_model.py's.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path
from typing import Any, NamedTuple

import sources
import torch
from task import Published, Task
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import language_model


class Sizes(NamedTuple):
    width: int  # of embeddings and projections
    hidden: int
    layers: int
    samples: int
    batch: int
    words: int  # of the vocabulary, at least; 0: the text's


SIZES = {
    "tiny": Sizes(8, 16, 1, 32, 4, 0),
    "default": Sizes(128, 512, 1, 256, 16, 0),
    "full": Sizes(512, 2048, 2, 8192, 128, 793_471),
}
SEQUENCE = 20
HELD_OUT = 200  # sequences


class Lstm(Task):
    published = Published(94, "Google's billion words")
    measure = "loss (nats a word)"
    higher_is_better = False
    steps = 150

    def __init__(self, data: Path | None, size: str, rank: int = 0, ranks: int = 1) -> None:
        super().__init__(data, size, rank, ranks)
        self.sizes = SIZES[size]
        self.batch_size = self.sizes.batch
        files = sources.files(data, "wikitext-2", "*.txt")
        words, vocabulary = self._drawn() if size == "tiny" and not files else self._read(files)
        self.vocabulary = max(vocabulary, self.sizes.words)
        windows = words[: len(words) // (SEQUENCE + 1) * (SEQUENCE + 1)].view(-1, SEQUENCE + 1)
        self.held_out = windows[-HELD_OUT:, :-1], windows[-HELD_OUT:, 1:]
        self.words = language_model.share_of(words[: -HELD_OUT * (SEQUENCE + 1)], rank, ranks)

    def _read(self, files: list[Path]) -> tuple[Tensor, int]:
        words, vocabulary = language_model.load_texts(files)
        names = ", ".join(file.name for file in files)
        self.source = f"{len(words):,} words of {names or 'the standard library of Python'}"
        return words, vocabulary

    def _drawn(self) -> tuple[Tensor, int]:
        self.source = "200 words, drawn with Zipf's frequencies"
        return (200 ** torch.rand(20_000, generator=torch.Generator().manual_seed(1))).long(), 200

    def model(self) -> nn.Module:
        args = Namespace(seed=torch.initial_seed() % 2**31, samples=self.sizes.samples)
        args.width = self.sizes.width
        model = language_model.build(args, self.vocabulary, self.rank)
        width, hidden, layers = self.sizes[:3]
        model.lstm = nn.LSTM(width, hidden, layers, proj_size=width)
        return model

    def batch(self, seed: int, step: int) -> tuple[Any, Any]:
        if step == 0:
            words = self.words.roll(-seed * 1009)
            self._data = language_model.batches(words, self.batch_size, SEQUENCE)
            self._state = None
        return next(self._data)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adagrad(model.parameters(), 0.2, initial_accumulator_value=1.0)

    def loss(self, model: nn.Module, batch: tuple[Any, Any]) -> Tensor:
        loss, state = model(*batch, self._state)
        self._state = tuple(part.detach() for part in state)
        return loss

    def quality(self, model: nn.Module) -> float:
        """By the full softmax."""
        with torch.no_grad():
            inputs, targets = self.held_out
            hidden, _ = model.lstm(model.embedding(inputs.t()))
            scores = hidden.flatten(0, 1) @ model.softmax.weight.t() + model.softmax.bias
            return float(nn.functional.cross_entropy(scores, targets.t().flatten()))
