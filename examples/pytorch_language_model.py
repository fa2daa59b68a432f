"""The word-level LSTM language model of language_model.py, trained by Horovod.

    horovodrun -np 4 python examples/pytorch_language_model.py --compression omnireduce

The same model under PyTorch's own DDP: pytorch_ddp.py.
"""

from __future__ import annotations

import argparse
import json
import os

import horovod.torch as hvd
import language_model
import torch


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    language_model.add_arguments(parser)
    parser.add_argument("--compression", choices=["none", "fp16", "omnireduce"], default="none")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    if args.compression == "omnireduce":
        import omnihvd  # before hvd.init()

        compression = omnihvd.OmniReduce
    else:
        compression = getattr(hvd.Compression, args.compression)
    hvd.init()
    if args.device == "cuda":
        torch.cuda.set_device(hvd.local_rank() % torch.cuda.device_count())
    elif "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // hvd.local_size()))

    words, vocabulary = language_model.load_text(args.text)
    words = language_model.share_of(words, hvd.rank(), hvd.size()).to(args.device)
    data = language_model.batches(words, args.batch_size, args.sequence)
    model = language_model.build(args, vocabulary, hvd.rank()).to(args.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.learning_rate)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters(), compression=compression
    )
    if hvd.rank() == 0:
        language_model.print_size(vocabulary, model)

    state = None
    losses, step_seconds, wait_seconds = [], [], []
    for step in range(1, args.steps + 1):
        start = language_model.clock(args.device)
        optimizer.zero_grad()
        loss, state = model(*next(data), state)
        loss.backward()
        computed = language_model.clock(args.device)
        optimizer.synchronize()  # what is left of the allreduce; step() would do it too
        reduced = language_model.clock(args.device)
        with optimizer.skip_synchronize():
            optimizer.step()
        state = tuple(part.detach() for part in state)
        losses.append(loss.item())
        step_seconds.append(language_model.clock(args.device) - start)
        wait_seconds.append(reduced - computed)

        if step % args.log_every == 0 or step == args.steps:
            mean = hvd.allreduce(torch.tensor(losses[-1]), name="loss").item()
            if hvd.rank() == 0:
                language_model.print_progress(args, step, mean, step_seconds)

    if args.json:
        report = {
            "ranks": hvd.size(),
            "compression": args.compression,
            "seed": args.seed,
            "gradient_bytes": language_model.gradient_bytes(model),  # a rank and step
            "losses": hvd.allreduce(torch.tensor(losses), name="losses").tolist(),  # mean of ranks
            "step_seconds": step_seconds,  # of rank 0, as the next one
            "wait_seconds": wait_seconds,  # for the allreduce, after the backward pass
        }
        if args.compression == "omnireduce":
            report["stats"] = hvd.allgather_object(omnihvd.stats())  # by rank
        if hvd.rank() == 0:
            args.json.write_text(json.dumps(report))


if __name__ == "__main__":
    main()
