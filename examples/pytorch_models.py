"""Three models with different gradients, to compare their reports (docs/tour.md).

    python -m omnihvd --report out/ examples/pytorch_models.py --model cnn

words        the LSTM language model of language_model.py: large tables, wide rows
recommender  NeuMF-like: two tables of short rows; a batch touches few rows. Ratings are drawn
             with Zipf frequencies
cnn          a convolutional network on random pictures: every gradient is dense

In one process, or by DDP on Gloo under torchrun.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import language_model
import torch
import torch.distributed as dist
import torch.distributed.nn  # before a group is made: see pytorch_ddp.py
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

Step = Callable[[nn.Module], Tensor]  # of the model's next batch, the loss
USERS, ITEMS, WIDTH = 100_000, 50_000, 32


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=list(MODELS), required=True)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument(
        "--sparse", action="store_true", help="gradients of tables as sparse tensors"
    )
    parser.add_argument("--json", type=Path, help="write the seconds of each step here")
    return parser.parse_args()


class Recommender(nn.Module):
    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.users = nn.Embedding(USERS, 2 * WIDTH, sparse=sparse)
        self.items = nn.Embedding(ITEMS, 2 * WIDTH, sparse=sparse)
        self.hidden = nn.Sequential(nn.Linear(2 * WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
        self.score = nn.Linear(2 * WIDTH, 1)

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        u, i = self.users(users), self.items(items)
        hidden = self.hidden(torch.cat([u[:, :WIDTH], i[:, :WIDTH]], 1))
        return self.score(torch.cat([u[:, WIDTH:] * i[:, WIDTH:], hidden], 1)).squeeze(1)


def zipf(n: int, count: int) -> Tensor:
    """count numbers below n; k occurs in proportion to 1 / (k + 1)."""
    return ((n + 1) ** torch.rand(count, dtype=torch.float64)).long().clamp(1, n) - 1


def recommender(sparse: bool, rank: int) -> tuple[nn.Module, Step]:
    model = Recommender(sparse)
    torch.manual_seed(rank)

    def step(model: nn.Module) -> Tensor:
        users, items = zipf(USERS, 512), zipf(ITEMS, 512)
        return nn.functional.mse_loss(model(users, items), (users + items).float() % 2)

    return model, step


def cnn(sparse: bool, rank: int) -> tuple[nn.Module, Step]:
    def layer(inputs: int, outputs: int, stride: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1), nn.BatchNorm2d(outputs), nn.ReLU()
        )

    model = nn.Sequential(
        *(layer(3, 64, 2), layer(64, 128, 2), layer(128, 256, 2), layer(256, 512, 2)),
        *(layer(512, 512, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10)),
    )
    torch.manual_seed(rank)

    def step(model: nn.Module) -> Tensor:
        return cross_entropy(model(torch.randn(8, 3, 32, 32)), torch.randint(10, (8,)))

    return model, step


class WordsLoss(nn.Module):
    """Keeps the LSTM's state from one batch to the next."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.state: tuple[Tensor, Tensor] | None = None

    def forward(self, words: Tensor, target: Tensor) -> Tensor:
        loss, state = self.model(words, target, self.state)
        self.state = (state[0].detach(), state[1].detach())
        return loss


def words(sparse: bool, rank: int) -> tuple[nn.Module, Step]:
    parser = argparse.ArgumentParser()
    language_model.add_arguments(parser)
    args = parser.parse_args([])
    text, vocabulary = language_model.load_text(None)
    size = dist.get_world_size() if dist.is_initialized() else 1
    text = language_model.share_of(text, rank, size)
    data: Iterator[tuple[Tensor, Tensor]] = language_model.batches(text, 16, 32)
    model = language_model.build(args, vocabulary, rank)
    model.embedding.sparse = sparse
    return WordsLoss(model), lambda model: model(*next(data))


MODELS = {"words": words, "recommender": recommender, "cnn": cnn}


def main() -> None:
    args = parse_arguments()
    ranks = int(os.environ.get("WORLD_SIZE", 1))
    if ranks > 1:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if ranks > 1 else 0
    torch.manual_seed(1)  # the same weights on all ranks
    model, step = MODELS[args.model](args.sparse, rank)
    if ranks > 1:
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    seconds = []
    for _ in range(args.steps):
        start = time.perf_counter()
        optimizer.zero_grad()
        step(model).backward()
        optimizer.step()
        seconds.append(time.perf_counter() - start)
    if rank == 0:
        print(f"{args.model}: {1e3 * statistics.median(seconds):.1f} ms a step", flush=True)
        if args.json:
            args.json.write_text(json.dumps(seconds))
    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
