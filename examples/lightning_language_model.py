"""The language model of language_model.py under Lightning; its strategy gets the backend's name.

    torchrun --nproc-per-node 2 examples/lightning_language_model.py

Needs `pip install lightning`.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import language_model
import lightning
import torch
import torch.distributed.nn  # before a group is made: see pytorch_ddp.py
from lightning.pytorch.strategies import DDPStrategy

import omnihvd.torch  # registers the backend


class Module(lightning.LightningModule):
    def __init__(self, args: argparse.Namespace, words: torch.Tensor, vocabulary: int) -> None:
        super().__init__()
        self.args, self.words, self.vocabulary = args, words, vocabulary
        self.model = language_model.build(args, vocabulary, rank=0)  # the same weights everywhere
        self.hidden: Any = None
        self.losses: list[float] = []

    def train_dataloader(self) -> Any:
        rank, size = self.global_rank, self.trainer.world_size
        self.model.softmax.generator.manual_seed(self.args.seed + 1 + rank)
        mine = language_model.share_of(self.words, rank, size)
        return language_model.batches(mine, self.args.batch_size, self.args.sequence)

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], _: int) -> torch.Tensor:
        loss, hidden = self.model(*batch, self.hidden)
        self.hidden = tuple(part.detach() for part in hidden)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.args.learning_rate)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    language_model.add_arguments(parser)
    args = parser.parse_args()
    module = Module(args, *language_model.load_text(args.text))
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        strategy=DDPStrategy(process_group_backend="omnihvd"),
        max_steps=args.steps,
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
    )
    trainer.fit(module)
    language_model.report_mean(args, module.losses, omnihvd.stats())
    torch.distributed.destroy_process_group()  # ends Gloo's threads


if __name__ == "__main__":
    main()
