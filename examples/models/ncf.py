"""NCF: predicts the next film of a user, by neural matrix factorization.

He et al., "Neural Collaborative Filtering" (WWW 2017), NeuMF: a product of embeddings beside a
network over others. Width and layers are those of NVIDIA's and MLPerf's implementation: 64 factors,
256-256-128-64; Adam with 0.0045, betas 0.25 and 0.5; four negatives for each positive.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import sources
import torch
from task import Published, Task, area_under_curve
from torch import Tensor, nn

NEGATIVES = 4
ML_20M = (138_493, 26_744)  # users and films


class NeuMF(nn.Module):
    def __init__(self, users: int, items: int, factors: int, layers: tuple[int, ...]) -> None:
        super().__init__()
        half = layers[0] // 2
        self.users = nn.ModuleList([nn.Embedding(users, factors), nn.Embedding(users, half)])
        self.items = nn.ModuleList([nn.Embedding(items, factors), nn.Embedding(items, half)])
        for table in (*self.users, *self.items):
            nn.init.normal_(table.weight, std=0.01)
        self.hidden = nn.Sequential(
            *(part for a, b in zip(layers, layers[1:]) for part in (nn.Linear(a, b), nn.ReLU()))
        )
        self.score = nn.Linear(factors + layers[-1], 1)

    def forward(self, pairs: Tensor) -> Tensor:
        """pairs: (batch, 2), user and item."""
        user, item = pairs[:, 0], pairs[:, 1]
        product = self.users[0](user) * self.items[0](item)
        hidden = self.hidden(torch.cat([self.users[1](user), self.items[1](item)], 1))
        return self.score(torch.cat([product, hidden], 1))[:, 0]


class Ncf(Task):
    published = Published(84, "MovieLens-20M")
    measure = "AUC"
    # The same share of all examples as a rank's batch of MovieLens-20M with 2^20 over 8 ranks.
    batch_size, steps = 640, 150
    factors, layers = 64, (256, 256, 128, 64)

    def __init__(self, data: Path | None, size: str, rank: int = 0, ranks: int = 1) -> None:
        super().__init__(data, size, rank, ranks)
        if size == "tiny":
            self.batch_size, self.factors, self.layers = 40, 8, (16, 8)
        elif size == "full":
            self.batch_size = 1 << 17
        users, items = self._ratings()
        self.counts = int(users.max()) + 1, int(items.max()) + 1
        if size == "full":
            self.counts = tuple(max(a, b) for a, b in zip(self.counts, ML_20M))
        pairs = torch.from_numpy(np.stack([users, items], 1))
        self.split(pairs, torch.ones(len(pairs)), min(2000, len(pairs) // 5))
        self.held_out = self._with_negatives(self.held_out[0], 0, 0)

    def _ratings(self) -> tuple[Any, Any]:
        found = sources.files(self.data, "ml-100k", "u.data", "ratings.csv", "*.inter")
        packed = sources.of_package("recbole", "dataset_example/ml-100k/ml-100k.inter")
        if self.size == "default" and (found or packed):
            file = found[0] if found else packed
            assert file
            rows = file.read_text().replace("\t", ",").replace("::", ",").splitlines()
            pairs = [row.split(",")[:2] for row in rows if row[:1].isdigit()]
            self.source = f"{len(pairs):,} ratings of {file.name}"
            users, items = np.array(pairs, np.int64).T
            return np.unique(users, return_inverse=True)[1], np.unique(items, return_inverse=True)[
                1
            ]
        count, (n_users, n_items) = 400_000, ML_20M
        if self.size != "full":
            count, n_users, n_items = 20_000, 943, 1_682
        self.source = f"drawn: {n_users:,} users alike, {n_items:,} films with Zipf's frequencies"
        rng = np.random.default_rng(1)
        items = ((n_items + 1) ** rng.random(count)).astype(np.int64).clip(1, n_items) - 1
        return rng.integers(0, n_users, count), items

    def _with_negatives(self, positive: Any, seed: int, step: int) -> tuple[Any, Any]:
        """Each pair, and others of its user with films drawn alike."""
        generator = torch.Generator().manual_seed(7 + 1_000_003 * seed + step)
        pairs = positive.repeat(1 + NEGATIVES, 1)
        drawn = torch.randint(self.counts[1], (NEGATIVES * len(positive),), generator=generator)
        pairs[len(positive) :, 1] = drawn
        labels = torch.zeros(len(pairs))
        labels[: len(positive)] = 1
        return pairs, labels

    def batch(self, seed: int, step: int) -> tuple[Any, Any]:
        chosen = self.drawn(seed, step, self.batch_size // (1 + NEGATIVES))
        return self._with_negatives(self.inputs[chosen], seed, step * self.ranks + self.rank)

    def model(self) -> nn.Module:
        return NeuMF(*self.counts, self.factors, self.layers)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), 0.0045, betas=(0.25, 0.5))

    def loss(self, model: nn.Module, batch: tuple[Any, Any]) -> Tensor:
        pairs, labels = batch
        return nn.functional.binary_cross_entropy_with_logits(model(pairs), labels)

    def judge(self, outputs: Tensor, targets: Tensor) -> float:
        return area_under_curve(outputs, targets)
