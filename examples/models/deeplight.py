"""DeepLight's DeepFwFM: clicks predicted by field-weighted factorization and a network.

Deng et al., "DeepLight: Deep Lightweight Feature Interactions for Accelerating CTR Predictions in
Ad Serving" (WSDM 2021): 39 fields of Criteo's, embeddings of 10, three layers of 400; Adam with
0.001, L2 of 3e-7. The first-order term is the embeddings' product with a vector for each field.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import sources
import torch
from task import Published, Task, area_under_curve
from torch import Tensor, nn

NUMBERS, FIELDS, WIDTH = 13, 39, 10
ROWS = 56_500_000  # of embeddings of 2.26 GB


class DeepFwFM(nn.Module):
    def __init__(self, rows: int, nodes: int, layers: int = 3, dropout: float = 0.5) -> None:
        super().__init__()
        self.table = nn.Embedding(rows, WIDTH)
        nn.init.normal_(self.table.weight, std=0.01)
        self.first = nn.Parameter(torch.randn(FIELDS, WIDTH) * 0.1)
        self.between = nn.Parameter(torch.randn(FIELDS, FIELDS) * 0.1)
        widths = [FIELDS * WIDTH, *[nodes] * layers]
        self.deep = nn.Sequential(
            *(
                part
                for a, b in zip(widths, widths[1:])
                for part in (nn.Linear(a, b), nn.ReLU(), nn.Dropout(dropout))
            ),
            nn.Linear(nodes, 1),
        )

    def forward(self, inputs: Tensor) -> Tensor:
        """inputs: (batch, 2, fields), float64, which holds rows exactly: rows of the table, and
        their factors."""
        rows, values = inputs[:, 0], inputs[:, 1].to(self.first.dtype)
        found = self.table(rows.long()) * values[..., None]
        weights = (self.between + self.between.t()).triu(1) / 2
        pairs = torch.einsum("bik,bjk,ij->b", found, found, weights)
        return (found * self.first).sum((1, 2)) + pairs + self.deep(found.flatten(1))[:, 0]


class DeepLight(Task):
    published = Published(99, "Criteo, 1 TB")
    measure = "AUC"
    batch_size, steps = 256, 60
    nodes = 400

    def __init__(self, data: Path | None, size: str, rank: int = 0, ranks: int = 1) -> None:
        super().__init__(data, size, rank, ranks)
        files = [] if size == "full" else sources.files(data, "criteo", "t*.csv")
        if files:
            table = np.concatenate([np.loadtxt(f, np.float64, delimiter=",") for f in files])
            self.source = f"{len(table):,} rows of Criteo, as DeepLight's authors number them"
            labels, columns = table[:, 0], table[:, 1:]
        else:
            labels, columns = self._drawn({"tiny": 2_000, "default": 60_000}.get(size, ROWS))
        most = columns[:, NUMBERS:].max(0).astype(np.int64) + 1
        if size == "full":
            most = np.full(FIELDS - NUMBERS, ROWS // (FIELDS - NUMBERS))
        begins = NUMBERS + np.concatenate([[0], most.cumsum()])
        self.rows = int(begins[-1])
        rows = np.concatenate(
            [np.tile(np.arange(NUMBERS), (len(columns), 1)), columns[:, NUMBERS:] + begins[:-1]], 1
        )
        values = np.ones_like(rows, np.float64)
        values[:, :NUMBERS] = np.log1p(columns[:, :NUMBERS])
        inputs = torch.from_numpy(np.stack([rows, values], 1))
        held_out = len(inputs) // 5
        self.split(inputs, torch.from_numpy(labels).float(), held_out)
        if size == "tiny":
            self.batch_size, self.nodes = 32, 16
        elif size == "full":
            self.batch_size = 2048

    def _drawn(self, vocabulary: int) -> tuple[Any, Any]:
        """Zipf's frequencies; a click is likelier where the first two numbers are large."""
        self.source = f"drawn with Zipf's frequencies, {vocabulary:,} values in all"
        rng, count = np.random.default_rng(1), 2_000 if self.size == "tiny" else 40_000
        numbers = rng.integers(0, 50, (count, NUMBERS))
        each = vocabulary // (FIELDS - NUMBERS)
        words = (each + 1) ** rng.random((count, FIELDS - NUMBERS)) - 1
        labels = rng.random(count) < (numbers[:, 0] + numbers[:, 1]) / 100
        return labels.astype(np.float64), np.concatenate([numbers, words.astype(np.int64)], 1)

    def model(self) -> nn.Module:
        return DeepFwFM(self.rows, self.nodes, dropout=0.0 if self.size == "tiny" else 0.5)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), 0.001, weight_decay=3e-7)

    def loss(self, model: nn.Module, batch: tuple[Any, Any]) -> Tensor:
        inputs, labels = batch
        return nn.functional.binary_cross_entropy_with_logits(model(inputs), labels)

    def judge(self, outputs: Tensor, targets: Tensor) -> float:
        return area_under_curve(outputs, targets)
