"""The language model of language_model.py under DeepSpeed's ZeRO, on CPUs and Gloo.

    DS_ACCELERATOR=cpu torchrun --nproc-per-node 2 examples/deepspeed_language_model.py

`import omnihvd` comes before deepspeed.init_distributed(). ZeRO 1 and 2 sum gradients by
allreduces, ZeRO 3 by reduce-scatters; both are taken. Needs `pip install deepspeed`; where that was
installed without its extensions for CPUs, a compiler, too: one is built at the first start.
"""

from __future__ import annotations

import argparse

import deepspeed
import language_model
import torch
import torch.distributed.nn  # before a group is made: see pytorch_ddp.py

import omnihvd  # before init_distributed(), on every rank


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--stage", type=int, choices=[1, 2, 3], default=3, help="of ZeRO")
    language_model.add_arguments(parser)
    args = parser.parse_args()
    deepspeed.init_distributed("gloo")
    rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    words, vocabulary = language_model.load_text(args.text)
    words = language_model.share_of(words, rank, size)
    model = language_model.build(args, vocabulary, rank)
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=args.learning_rate),
        config={
            "train_micro_batch_size_per_gpu": args.batch_size,
            "zero_optimization": {"stage": args.stage, "reduce_bucket_size": 20_000_000},
            "zero_allow_untested_optimizer": True,
        },
    )

    hidden, losses = None, []
    data = language_model.batches(words, args.batch_size, args.sequence)
    for _, (inputs, targets) in zip(range(args.steps), data):
        loss, hidden = engine(inputs, targets, hidden)
        engine.backward(loss)
        engine.step()
        hidden = tuple(part.detach() for part in hidden)
        losses.append(loss.item())
    language_model.report_mean(args, losses, omnihvd.stats())
    torch.distributed.destroy_process_group()  # ends Gloo's threads


if __name__ == "__main__":
    main()
