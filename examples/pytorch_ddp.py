"""The word-level LSTM language model of language_model.py, trained by PyTorch's own DDP.

    torchrun --nproc-per-node 4 examples/pytorch_ddp.py --omnireduce

The one line that OmniReduce takes is `import omnihvd` before init_process_group, for NCCL on GPUs
and Gloo on CPUs alike. DDP reduces gradients in buckets of about `bucket_cap_mb`; they are dense
tensors, those of the embedding tables mostly zeros, and a table that is larger than a bucket has
one of its own. With `--topk 0.1`, on CPUs, a hook of DDP's sends that share of each gradient's
blocks, and keeps the rest for the next step.
"""

from __future__ import annotations

import argparse
import json
import os
from datetime import timedelta

import language_model
import torch
import torch.distributed as dist

# DDP imports this module, and its default arguments then keep the current group for ever. Import it
# before there is one: then destroy_process_group() ends Gloo's threads. Threads that outlive Python
# abort it.
import torch.distributed.nn
from torch.nn.parallel import DistributedDataParallel

BACKENDS = {"cuda": "nccl", "cpu": "gloo"}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    language_model.add_arguments(parser)
    parser.add_argument(
        "--omnireduce",
        nargs="?",
        const="import",
        choices=["import", "hook"],
        help="sum by OmniReduce: all sums, or those of DDP alone by a hook (on CPUs)",
    )
    parser.add_argument("--topk", type=float, help="share of the blocks to send, by OmniReduce")
    parser.add_argument(
        "--device", choices=list(BACKENDS), default="cuda" if torch.cuda.is_available() else "cpu"
    )
    parser.add_argument("--bucket-mb", type=int, default=25, help="DDP's bucket_cap_mb")
    parser.add_argument("--timeout", type=float, default=600, help="seconds, of an operation")
    return parser.parse_args()


def mean_of_ranks(values: list[float], device: str) -> list[float]:
    tensor = torch.tensor(values, device=device)
    dist.all_reduce(tensor)
    return (tensor / dist.get_world_size()).tolist()


def compress(ddp: DistributedDataParallel, ratio: float) -> None:
    import omnihvd.torch

    compressor = omnihvd.OmniReduce.block_topk(ratio)
    state = omnihvd.torch.CompressionState(compressor, ddp.module.named_parameters())
    ddp.register_comm_hook(state, omnihvd.torch.compressed_allreduce_hook)


def train(args: argparse.Namespace) -> dict:
    rank, size = dist.get_rank(), dist.get_world_size()
    words, vocabulary = language_model.load_text(args.text)
    words = language_model.share_of(words, rank, size).to(args.device)
    data = language_model.batches(words, args.batch_size, args.sequence)
    model = language_model.build(args, vocabulary, rank).to(args.device)
    ddp = DistributedDataParallel(model, bucket_cap_mb=args.bucket_mb)
    if args.topk:
        compress(ddp, args.topk)
    elif args.omnireduce == "hook":
        import omnihvd.torch

        ddp.register_comm_hook(None, omnihvd.torch.allreduce_hook)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=args.learning_rate)
    if rank == 0:
        language_model.print_size(vocabulary, model)

    state = None  # of the LSTM: each rank has its own, of its own part of the text
    losses, step_seconds = [], []
    for step in range(1, args.steps + 1):
        start = language_model.clock(args.device)
        optimizer.zero_grad()
        loss, state = ddp(*next(data), state)
        loss.backward()  # reduces, bucket by bucket
        optimizer.step()
        state = tuple(part.detach() for part in state)  # the next step's gradients end here
        losses.append(loss.item())
        step_seconds.append(language_model.clock(args.device) - start)

        if step % args.log_every == 0 or step == args.steps:
            (mean,) = mean_of_ranks(losses[-1:], args.device)
            if rank == 0:
                language_model.print_progress(args, step, mean, step_seconds)

    report = {
        "ranks": size,
        "backend": BACKENDS[args.device],
        "omnireduce": bool(args.omnireduce),
        "seed": args.seed,
        "gradient_bytes": language_model.gradient_bytes(model),  # a rank and step
        "losses": mean_of_ranks(losses, args.device),
        "step_seconds": step_seconds,  # of rank 0
    }
    if args.omnireduce:
        import omnihvd

        report["stats"] = [None] * size  # by rank
        dist.all_gather_object(report["stats"], omnihvd.stats())
    return report


def main() -> None:
    args = parse_arguments()
    if args.omnireduce == "import":
        import omnihvd  # noqa: F401, before init_process_group()
    if args.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    dist.init_process_group(BACKENDS[args.device], timeout=timedelta(seconds=args.timeout))
    rank = dist.get_rank()
    report = train(args)
    dist.destroy_process_group()
    if args.json and rank == 0:
        args.json.write_text(json.dumps(report))


if __name__ == "__main__":
    main()
