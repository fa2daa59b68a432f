"""The language model of language_model.py under Accelerate: `import omnihvd` comes first.

    torchrun --nproc-per-node 2 examples/accelerate_language_model.py

Needs `pip install accelerate`.
"""

from __future__ import annotations

import argparse

import accelerate
import language_model
import torch
import torch.distributed.nn  # before a group is made: see pytorch_ddp.py

import omnihvd  # before Accelerator(), on every rank


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    language_model.add_arguments(parser)
    args = parser.parse_args()
    accelerator = accelerate.Accelerator(cpu=True)
    rank, size = accelerator.process_index, accelerator.num_processes
    words, vocabulary = language_model.load_text(args.text)
    words = language_model.share_of(words, rank, size)
    model = language_model.build(args, vocabulary, rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.learning_rate)
    model, optimizer = accelerator.prepare(model, optimizer)

    hidden, losses = None, []
    data = language_model.batches(words, args.batch_size, args.sequence)
    for _, (inputs, targets) in zip(range(args.steps), data):
        optimizer.zero_grad()
        loss, hidden = model(inputs, targets, hidden)
        accelerator.backward(loss)
        optimizer.step()
        hidden = tuple(part.detach() for part in hidden)
        losses.append(loss.item())
    language_model.report_mean(args, losses, omnihvd.stats())
    accelerator.end_training()


if __name__ == "__main__":
    main()
