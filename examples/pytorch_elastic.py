"""The language model of language_model.py in an elastic job: ranks come and go.

    horovodrun -np 2 --min-np 1 --network-interface lo \\
        --host-discovery-script examples/this_host.sh \\
        python examples/pytorch_elastic.py

The script prints the hosts that there are (`host:slots`, a line each), whenever Horovod asks. When
a rank is lost, the others go on from the last commit. Each rank has an LSTM state and a generator
of its own; with a commit they are gathered, so that whoever takes a rank's place goes on from
there, and the losses are those of a job in which nothing happened.
"""

from __future__ import annotations

import argparse
import itertools
import json
from typing import Any

import horovod.torch as hvd
import language_model
import torch

from omnihvd import OmniReduce  # before hvd.init()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    language_model.add_arguments(parser)
    parser.add_argument("--commit-every", type=int, default=5, help="steps")
    return parser.parse_args()


@hvd.elastic.run
def train(state: Any, args: argparse.Namespace, words: torch.Tensor) -> None:
    rank, size = hvd.rank(), hvd.size()
    model, optimizer = state.model, state.optimizer
    mine = language_model.share_of(words, rank, size)
    data = language_model.batches(mine, args.batch_size, args.sequence)
    data = itertools.islice(data, state.step, None)
    hidden = None
    if rank < len(state.of_ranks):
        hidden, generator = state.of_ranks[rank]
        model.softmax.generator.set_state(generator)
    else:
        model.softmax.generator.manual_seed(args.seed + 1 + rank)
    losses, step_seconds = [], []
    while state.step < args.steps:
        start = language_model.clock("cpu")
        optimizer.zero_grad()
        loss, hidden = model(*next(data), hidden)
        loss.backward()
        optimizer.step()
        hidden = tuple(part.detach() for part in hidden)
        losses.append(loss.item())
        step_seconds.append(language_model.clock("cpu") - start)
        state.step += 1
        if state.step % args.commit_every == 0 or state.step == args.steps:
            mean = hvd.allreduce(torch.tensor(losses), name="losses").tolist()
            state.losses = state.losses + mean
            state.step_seconds = state.step_seconds + step_seconds  # of rank 0, after a change
            state.of_ranks = hvd.allgather_object((hidden, model.softmax.generator.get_state()))
            state.sizes = state.sizes + [size] * len(losses)
            losses, step_seconds = [], []
            if rank == 0:
                language_model.print_progress(args, state.step, mean[-1], state.step_seconds)
            state.commit()


def main() -> None:
    args = parse_arguments()
    hvd.init()
    words, vocabulary = language_model.load_text(args.text)
    model = language_model.build(args, vocabulary, hvd.rank())
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=args.learning_rate),
        named_parameters=model.named_parameters(),
        compression=OmniReduce,
    )
    if hvd.rank() == 0:
        language_model.print_size(vocabulary, model)
    state = hvd.elastic.TorchState(
        model=model, optimizer=optimizer, step=0, losses=[], step_seconds=[], of_ranks=[], sizes=[]
    )
    train(state, args, words)
    if args.json and hvd.rank() == 0:
        report = {
            "ranks": hvd.size(),
            "seed": args.seed,
            "gradient_bytes": language_model.gradient_bytes(model),  # a rank and step
            "losses": state.losses,  # mean of the ranks
            "sizes": state.sizes,  # of the job, in each step
            "step_seconds": state.step_seconds,
        }
        args.json.write_text(json.dumps(report))


if __name__ == "__main__":
    main()
